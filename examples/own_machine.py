"""My machine is not in the catalogue: how do I describe it, and how fast is it?

Run it with: python own_machine.py [PICTURE]
"""

import sys
import tempfile
from pathlib import Path

import blinksim as bs

MACHINE = """
name: square
devices:
  - {name: "gpu[0-3]", kind: gpu}
link_classes:
  nvlink: {bandwidth: 25GB/s, latency: 0.6us, overhead: 1.3us, source: data sheet}
links:
  - {between: [gpu0, gpu1], class: nvlink, lanes: 2}
  - {between: [gpu1, gpu2], class: nvlink}
  - {between: [gpu2, gpu3], class: nvlink, lanes: 2}
  - {between: [gpu3, gpu0], class: nvlink}
"""

path = Path(tempfile.mkdtemp()) / "square.yaml"
path.write_text(MACHINE)
found = bs.bound(path, "allreduce")
print(f"The rules for machine files find {len(bs.check(path))} mistakes.")
print(f"An allreduce reaches at most {found.rate_GBps:.0f} GB/s of algbw:")
print(found.certificate.words(found.topology))

picture = sys.argv[1] if len(sys.argv) > 1 else "own_machine.png"
bs.plot.save(bs.plot.topology(path, found), picture, force=True)
print(f"{picture} shows where.")
