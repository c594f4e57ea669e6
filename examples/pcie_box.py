"""What does a box of eight GPUs on PCIe reach, and how much quicker is one with NVLink?

Run it with: python pcie_box.py
"""

import blinksim as bs

pcie, nvlink = (bs.project(name, "allreduce", "256MiB") for name in ("rtx-pro-6000-pcie", "hgx-h100"))
for answer in (pcie, nvlink):
    print(f"{answer.machine}: {answer.time_s * 1e3:.2f} ms for 256 MiB, busbw {answer.busbw_GBps:.0f} GB/s")
print(f"NVLink is {pcie.time_s / nvlink.time_s:.0f} times as quick.")
bound = bs.bound("rtx-pro-6000-pcie", "allreduce")
print(f"Why: {bound.certificate.words(bound.topology)}.")
