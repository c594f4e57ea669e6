"""What busbw should my cluster reach, and below which figure should an alarm ring?

Run it with: python expected_busbw.py
"""

import blinksim as bs

found = bs.expect("p5", ["allreduce", "alltoall"], "1MiB:1GiB:x32", nodes=4)
print(found.sentence())
for row in found.rows():
    what = f"{row['collective']} of {row['size_bytes'] >> 20} MiB"
    expected, floor = row["expected_busbw_GBps"], row["floor_busbw_GBps"]
    print(f"  {what:22} {expected:6.1f} GB/s expected, alarm below {floor:6.1f}")
print("As rules for Prometheus:", found.prometheus().count("record:"), "constants.")
