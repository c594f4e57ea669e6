"""blinksim: how fast can a collective be on this machine, how fast will it be, why, and what to load to get it.

The names below are loaded when they are first used, so that ``import blinksim`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blinksim.bounds import bound as bound
    from blinksim.choose import Contest as Contest
    from blinksim.choose import Projection as Projection
    from blinksim.choose import contest as contest
    from blinksim.choose import project as project
    from blinksim.collective import Collective as Collective
    from blinksim.errors import BlinksimError as BlinksimError
    from blinksim.execution import execute as execute
    from blinksim.exports import write as write
    from blinksim.formats.schedule_json import read_schedule as read_schedule
    from blinksim.formats.schedule_json import write_schedule as write_schedule
    from blinksim.machines import load as load
    from blinksim.schedule.verify import verify as verify
    from blinksim.simulation import simulate as simulate
    from blinksim.study.advise import advise as advise
    from blinksim.study.calibrate import calibrate as calibrate
    from blinksim.study.calibrate import read_series as read_series
    from blinksim.study.compare import compare as compare
    from blinksim.study.diagnose import diagnose as diagnose
    from blinksim.study.place import place as place
    from blinksim.study.sweep import sweep as sweep
    from blinksim.synthesis import synthesize as synthesize
    from blinksim.topology.graph import Device as Device
    from blinksim.topology.graph import Link as Link
    from blinksim.topology.graph import Topology as Topology

__version__ = "0.1.0.dev0"

_HOME = {
    "BlinksimError": "blinksim.errors",
    "Collective": "blinksim.collective",
    "Contest": "blinksim.choose",
    "Device": "blinksim.topology.graph",
    "Link": "blinksim.topology.graph",
    "Projection": "blinksim.choose",
    "Topology": "blinksim.topology.graph",
    "advise": "blinksim.study.advise",
    "calibrate": "blinksim.study.calibrate",
    "compare": "blinksim.study.compare",
    "contest": "blinksim.choose",
    "bound": "blinksim.bounds",
    "diagnose": "blinksim.study.diagnose",
    "execute": "blinksim.execution",
    "load": "blinksim.machines",
    "place": "blinksim.study.place",
    "plot": "blinksim.study.plots",
    "project": "blinksim.choose",
    "read_schedule": "blinksim.formats.schedule_json",
    "sweep": "blinksim.study.sweep",
    "read_series": "blinksim.study.calibrate",
    "simulate": "blinksim.simulation",
    "synthesize": "blinksim.synthesis",
    "verify": "blinksim.schedule.verify",
    "write": "blinksim.exports",
    "write_schedule": "blinksim.formats.schedule_json",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'blinksim' has no attribute {name!r}")
    module = import_module(_HOME[name])
    value = module if name == "plot" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
