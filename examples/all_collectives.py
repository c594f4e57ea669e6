"""How long does each collective take, and how fast could it be?

Run it with: python all_collectives.py
"""

import blinksim as bs

machine = bs.load("hgx-h100")
print("256 MiB on eight H100       takes       busbw     at least")
for name in ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce"):
    answer = bs.project(machine, name, "256MiB")
    least = answer.to_dict()["cannot_take_less_s"]
    print(f"{name:22} {answer.time_s * 1e3:7.3f} ms  {answer.busbw_GBps:5.0f} GB/s  {least * 1e3:6.3f} ms")
