"""Is this box whole, what does its damage cost, and which GPUs should I take meanwhile?

Run it with: python box_health.py [WHAT nvidia-smi nvlink -s PRINTED]
"""

import sys
import tempfile
from pathlib import Path

import blinksim as bs

if len(sys.argv) > 1:
    box = Path(sys.argv[1])
else:
    box = Path(tempfile.mkdtemp()) / "box.txt"
    lines = []
    for gpu in range(8):
        lines.append(f"GPU {gpu}: NVIDIA H200 (UUID: GPU-{gpu})")
        works = 15 if gpu == 5 else 18  # three NVLinks of GPU 5 are down
        lines += [f"\t Link {link}: {'26.562 GB/s' if link < works else '<inactive>'}" for link in range(18)]
    box.write_text("\n".join(lines) + "\n")

found = bs.health(box)
print(found.sentence())
if found.takes and found.healthy:
    print(f"256 MiB take {found.takes.time_s * 1e3:.2f} ms in place of {found.healthy.time_s * 1e3:.2f} ms.")
if found.meanwhile:
    print(f"Take {', '.join(found.meanwhile.members)} meanwhile: {found.meanwhile.busbw_GBps:.0f} GB/s busbw.")
