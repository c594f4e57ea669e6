"""Can stock NCCL be quicker, if I measure some of its choices and give it a tuner file?

Run it with: python tuner_file.py [FILE]
"""

import sys
import tempfile
from pathlib import Path

import blinksim as bs

# What nccl-tests printed with NCCL_ALGO and NCCL_PROTO set, in seconds.
times = [
    bs.ChoiceTime("allgather", 2**22, "ring", "ll128", -1, 27e-6),
    bs.ChoiceTime("allgather", 2**22, "ring", "simple", -1, 36e-6),
]
found = bs.tune("hgx-h200", times, members="0-3", nvls=False)
for rule, change in found.changes():
    print(f"{rule.collective}, {found.span(rule)}: {change}.")

file = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()) / "tuner.csv"
exported = found.export()
bs.write(exported, file, force=True)
for name, value in exported.variables(file.name).items():
    print(f"export {name}={value}")
