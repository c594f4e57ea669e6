"""Draws two pictures of the start page: where six GPUs of a DGX-1 are narrow, and the chains that serve them best.

Run it in the checkout: python docs/pictures/start.py. The third one is that of examples/two_machines.py.
"""

from pathlib import Path

from matplotlib.figure import Figure

import blinksim as bs

HERE = Path(__file__).resolve().parent
GPUS = "0,1,2,3,4,7"


def narrow() -> Figure:
    """The groups of GPUs between which most data must cross for the bandwidth."""
    part = bs.load("dgx1-v100").select(GPUS)
    return bs.plot.topology(part, bs.bound(part, "allreduce"))


def chains() -> Figure:
    """What `blinksim advise` has NCCL load."""
    part = bs.load("dgx1-v100", rates="nccl").select(GPUS)
    return bs.plot.trees(bs.synthesize(part, "allreduce", "chains").schedule)


if __name__ == "__main__":
    for name, picture in (("narrow", narrow()), ("chains", chains())):
        bs.plot.save(picture, HERE / f"start-{name}.png", force=True)
