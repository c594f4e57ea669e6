"""Which bucket size should DDP have for 14 GB of gradients on one HGX H100?

Run it with: python ddp_buckets.py
"""

import blinksim as bs

found = bs.buckets("hgx-h100", "allreduce", "14GB", "25MiB")
for row in sorted(found.rows(), key=lambda row: row["calls"], reverse=True):
    mebibytes = row["bucket_bytes"] / 2**20
    if mebibytes in (1, 25, 64, 512, 1024):
        print(f"buckets of {mebibytes:4.0f} MiB: {row['calls']:5} calls, {row['time_s'] * 1e3:5.1f} ms")
print(f"From {found.best.size >> 20} MiB on, buckets cost at most 10 % more than a single call.")
