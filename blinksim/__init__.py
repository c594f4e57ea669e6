"""blinksim: how fast can a collective be on this machine, how fast will it be, why, and what to load to get it.

The names below are loaded when they are first used, so that ``import blinksim`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blinksim.answers.advise import advise as advise
    from blinksim.answers.compare import compare as compare
    from blinksim.answers.logs.calibrate import calibrate as calibrate
    from blinksim.answers.logs.calibrate import read_series as read_series
    from blinksim.answers.logs.diagnose import diagnose as diagnose
    from blinksim.answers.place import place as place
    from blinksim.answers.project import Contest as Contest
    from blinksim.answers.project import Projection as Projection
    from blinksim.answers.project import contest as contest
    from blinksim.answers.project import project as project
    from blinksim.answers.sweeps.sweep import sweep as sweep
    from blinksim.answers.synthesize import synthesize as synthesize
    from blinksim.bounds import bound as bound
    from blinksim.collective import Collective as Collective
    from blinksim.errors import BlinksimError as BlinksimError
    from blinksim.execution import execute as execute
    from blinksim.exports import write as write
    from blinksim.formats.schedule_json import read_schedule as read_schedule
    from blinksim.formats.schedule_json import write_schedule as write_schedule
    from blinksim.machines import load as load
    from blinksim.schedule.verify import verify as verify
    from blinksim.simulation import simulate as simulate
    from blinksim.topology.graph import Device as Device
    from blinksim.topology.graph import Link as Link
    from blinksim.topology.graph import Topology as Topology

from blinksim._version import __version__ as __version__

_HOME = {
    "BlinksimError": "blinksim.errors",
    "Collective": "blinksim.collective",
    "Contest": "blinksim.answers.project",
    "Device": "blinksim.topology.graph",
    "Link": "blinksim.topology.graph",
    "Projection": "blinksim.answers.project",
    "Topology": "blinksim.topology.graph",
    "advise": "blinksim.answers.advise",
    "calibrate": "blinksim.answers.logs.calibrate",
    "compare": "blinksim.answers.compare",
    "contest": "blinksim.answers.project",
    "bound": "blinksim.bounds",
    "diagnose": "blinksim.answers.logs.diagnose",
    "execute": "blinksim.execution",
    "load": "blinksim.machines",
    "place": "blinksim.answers.place",
    "plot": "blinksim.plots",
    "project": "blinksim.answers.project",
    "read_schedule": "blinksim.formats.schedule_json",
    "sweep": "blinksim.answers.sweeps.sweep",
    "read_series": "blinksim.answers.logs.calibrate",
    "simulate": "blinksim.simulation",
    "synthesize": "blinksim.answers.synthesize",
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
