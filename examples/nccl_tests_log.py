"""What does my log of nccl-tests say: is the machine healthy, and if not, what should I look at?

Run it with: python nccl_tests_log.py [LOG]
"""

import sys
import tempfile
from pathlib import Path

import blinksim as bs

LOG = """# Collective test starting: all_reduce_perf
#      size      count   type  redop  root     time   algbw   busbw  #wrong
#       (B)                                    (us)  (GB/s)  (GB/s)
    1048576     262144  float    sum    -1    40.00   26.21   45.87       0
   16777216    4194304  float    sum    -1    125.0  134.22  234.88       0
  268435456   67108864  float    sum    -1   1390.0  193.12  337.96       0
 1073741824  268435456  float    sum    -1   5290.0  202.98  355.21       0
"""

if len(sys.argv) > 1:
    log = Path(sys.argv[1])
else:
    log = Path(tempfile.mkdtemp()) / "log.txt"
    log.write_text(LOG)

found = bs.diagnose(log, "hgx-h100")
for row in found.rows():
    verdict = "behind" if row["behind"] else "as expected"
    print(f"{row['size_bytes'] >> 20:5} MiB: {row['busbw_GBps']:5.1f} GB/s busbw, {verdict}")
print(found.sentence())
