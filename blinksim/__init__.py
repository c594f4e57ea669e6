"""How long a collective takes on a machine with several GPUs, what limits it, and what to load to be quicker.

>>> import blinksim as bs
>>> answer = bs.project("hgx-h100", "allreduce", "256MiB")
>>> print(answer.sentence())
allreduce of 256 MiB on 8 GPUs of hgx-h100: 1.09 ms with NCCL, busbw 430.9 GB/s

``print(answer)`` says more. A machine is a name, a file, or what `load` returns, such as
``bs.load("hgx-h100", nodes=2)`` or ``bs.load("hgx-h100").select([0, 1, 2, 3])``. `bound` gives the limit,
`compare` the times by size, `synthesize` a schedule, `advise` what to load into NCCL; each explains itself
with an example, as in ``help(bs.project)``. The pages are in docs/: first-hour.md to begin with, api.md for
all names, and ``blinksim help WORD`` on the command line for words.
"""

# The names are loaded when they are first used, so that ``import blinksim`` costs nothing. They stand in
# `__init__.pyi`, which type checkers and editors read in place of this file.

from importlib import import_module

# Every "from MODULE import NAME, NAME" there.
_TABLE = __loader__.get_data(f"{__path__[0]}/__init__.pyi").decode().partition("__all__")[0]
_HOME = {}
for entry in _TABLE.split("from ")[1:]:
    module, _, names = entry.partition(" import ")
    _HOME |= {name.split()[-1]: module for name in names.strip("()\n").split(",") if name.strip()}
__version__ = import_module(_HOME.pop("__version__")).__version__
__all__ = sorted(_HOME)


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"module 'blinksim' has no attribute {name!r}")
    home = import_module("blinksim.plots" if name == "plot" else _HOME[name])
    value = home if name == "plot" else import_module("blinksim.errors").asked(getattr(home, name))
    return globals().setdefault(name, value)


def __dir__():
    return [*__all__, "__version__"]
