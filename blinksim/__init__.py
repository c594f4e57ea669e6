"""How long a collective takes on a machine with several GPUs, what limits it, and what to load to be quicker.

>>> import blinksim as bs
>>> answer = bs.project("hgx-h100", "allreduce", "256MiB")
>>> print(answer.sentence())
allreduce of 256 MiB on 8 GPUs of hgx-h100: 1.092 ms with NCCL, busbw 430.1 GB/s

``print(answer)`` says more. A machine is a name, a file, or what `load` returns, such as
``bs.load("hgx-h100", nodes=2)`` or ``bs.load("hgx-h100").select([0, 1, 2, 3])``. `bound` gives the limit,
`compare` the times by size, `synthesize` a schedule, `advise` what to load into NCCL; each explains itself
with an example, as in ``help(bs.project)``. The pages are in docs/: first-hour.md to begin with, api.md for
all names, and ``blinksim help WORD`` on the command line for words.
"""

# The names below are loaded when they are first used, so that ``import blinksim`` costs nothing. Type
# checkers and editors read the imports; a test holds them to the table that Python reads.

from __future__ import annotations

from typing import TYPE_CHECKING

from blinksim._version import __version__ as __version__

if TYPE_CHECKING:
    __all__: list[str]

    from blinksim import plots as plot  # noqa: F401
    from blinksim.algorithms.building.plan import Plan as Plan
    from blinksim.algorithms.registry import register_algorithm as register_algorithm
    from blinksim.answers.advise import Advice as Advice, advise as advise
    from blinksim.answers.bound import (
        bound as bound,
        gains as gains,
        levels as levels,
        losses as losses,
        time_bound as time_bound,
    )
    from blinksim.answers.compare import (
        Buckets as Buckets,
        Comparison as Comparison,
        MachineComparison as MachineComparison,
        Models as Models,
        across_models as across_models,
        buckets as buckets,
        compare as compare,
        compare_machines as compare_machines,
    )
    from blinksim.answers.expect import Expectations as Expectations, expect as expect
    from blinksim.answers.health import Health as Health, health as health
    from blinksim.answers.logs.calibrate import Calibration as Calibration, calibrate as calibrate
    from blinksim.answers.logs.diagnose import Diagnosis as Diagnosis, diagnose as diagnose
    from blinksim.answers.logs.expectation import Series as Series, read_series as read_series
    from blinksim.answers.measurements.public import (
        Measured as Measured,
        PublicMeasurements as PublicMeasurements,
        measured as measured,
    )
    from blinksim.answers.pareto import Pareto as Pareto, Tradeoff as Tradeoff, pareto as pareto
    from blinksim.answers.place import Placements as Placements, place as place
    from blinksim.answers.project import (
        Answer as Answer,
        Ranking as Ranking,
        contest as contest,
        project as project,
        rank as rank,
    )
    from blinksim.answers.sweep import Sweep as Sweep, sweep as sweep
    from blinksim.answers.synthesize import Synthesis as Synthesis, synthesize as synthesize
    from blinksim.answers.together import together as together
    from blinksim.answers.tune import ChoiceTime as ChoiceTime, Tuning as Tuning, tune as tune
    from blinksim.answers.verify import (
        FileVerdict as FileVerdict,
        read_schedule as read_schedule,
        verify as verify,
        verify_file as verify_file,
    )
    from blinksim.bounds.bound_result import Bound as Bound, BoundResult as BoundResult
    from blinksim.bounds.experts import (
        draw_routing as draw_routing,
        expert_traffic as expert_traffic,
        read_routing as read_routing,
        write_routing as write_routing,
    )
    from blinksim.bounds.sensitivity import Change as Change
    from blinksim.bounds.time.time_bound import TimeBound as TimeBound
    from blinksim.bounds.together import Together as Together
    from blinksim.collective import Collective as Collective
    from blinksim.errors import (
        BlinksimError as BlinksimError,
        FileError as FileError,
        InfeasibleError as InfeasibleError,
        InputError as InputError,
        MissingError as MissingError,
        PluginError as PluginError,
    )
    from blinksim.exports import export as export, write as write
    from blinksim.formats.schedule_json import write_schedule as write_schedule
    from blinksim.formats.traffic_files import read_traffic as read_traffic, write_traffic as write_traffic
    from blinksim.gpu.execution.run import Execution as Execution, execute as execute
    from blinksim.machines import catalogue as catalogue, check as check, load as load, this_machine as this_machine
    from blinksim.papers.tables import Reproduction as Reproduction, reproduce as reproduce
    from blinksim.question import Question as Question
    from blinksim.results import Term as Term
    from blinksim.routing import Routing as Routing
    from blinksim.schedule.model import Schedule as Schedule
    from blinksim.schedule.verify import Verdict as Verdict
    from blinksim.textio.whole_files import Exported as Exported
    from blinksim.timing.contest import Contest as Contest
    from blinksim.timing.experts import project_experts as project_experts
    from blinksim.timing.model_registry import model as model, register_model as register_model
    from blinksim.timing.projection_result import Projection as Projection
    from blinksim.timing.simulator import Timeline as Timeline, simulate as simulate
    from blinksim.timing.timing_model import Breakdown as Breakdown, ScheduleModel as ScheduleModel
    from blinksim.topology.graph import Device as Device, Link as Link, Topology as Topology
    from blinksim.topology.networkx_reader import from_networkx as from_networkx
    from blinksim.topology.rules import Finding as Finding
    from blinksim.traffic import Traffic as Traffic
else:
    # The public names by the modules that define them.
    _NAMES = {
        "algorithms.building.plan": "Plan",
        "algorithms.registry": "register_algorithm",
        "answers.advise": "Advice advise",
        "answers.bound": "bound gains levels losses time_bound",
        "answers.compare": "Buckets Comparison MachineComparison Models across_models buckets compare compare_machines",
        "answers.expect": "Expectations expect",
        "answers.health": "Health health",
        "answers.logs.calibrate": "Calibration calibrate",
        "answers.logs.diagnose": "Diagnosis diagnose",
        "answers.logs.expectation": "Series read_series",
        "answers.measurements.public": "Measured PublicMeasurements measured",
        "answers.pareto": "Pareto Tradeoff pareto",
        "answers.place": "Placements place",
        "answers.project": "Answer Ranking contest project rank",
        "answers.sweep": "Sweep sweep",
        "answers.synthesize": "Synthesis synthesize",
        "answers.together": "together",
        "answers.tune": "ChoiceTime Tuning tune",
        "answers.verify": "FileVerdict read_schedule verify verify_file",
        "bounds.bound_result": "Bound BoundResult",
        "bounds.experts": "draw_routing expert_traffic read_routing write_routing",
        "bounds.sensitivity": "Change",
        "bounds.time.time_bound": "TimeBound",
        "bounds.together": "Together",
        "collective": "Collective",
        "errors": "BlinksimError FileError InfeasibleError InputError MissingError PluginError",
        "exports": "export write",
        "formats.schedule_json": "write_schedule",
        "formats.traffic_files": "read_traffic write_traffic",
        "gpu.execution.run": "Execution execute",
        "machines": "catalogue check load this_machine",
        "papers.tables": "Reproduction reproduce",
        "question": "Question",
        "results": "Term",
        "routing": "Routing",
        "schedule.model": "Schedule",
        "schedule.verify": "Verdict",
        "textio.whole_files": "Exported",
        "timing.contest": "Contest",
        "timing.experts": "project_experts",
        "timing.model_registry": "model register_model",
        "timing.projection_result": "Projection",
        "timing.simulator": "Timeline simulate",
        "timing.timing_model": "Breakdown ScheduleModel",
        "topology.graph": "Device Link Topology",
        "topology.networkx_reader": "from_networkx",
        "topology.rules": "Finding",
        "traffic": "Traffic",
    }
    _HOME = {name: f"blinksim.{module}" for module, names in _NAMES.items() for name in names.split()}
    __all__ = sorted([*_HOME, "plot"])

    def __getattr__(name):
        from importlib import import_module

        if name not in __all__:
            raise AttributeError(f"module 'blinksim' has no attribute {name!r}")
        module = import_module(_HOME.get(name, "blinksim.plots"))
        value = import_module("blinksim.errors").asked(getattr(module, name)) if name in _HOME else module
        return globals().setdefault(name, value)

    def __dir__():
        return [*__all__, "__version__"]
