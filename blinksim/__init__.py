"""Performance of GPU collectives on a machine: the best rate, the projected time, its causes, what to load.

The names below are loaded when they are first used, so that ``import blinksim`` costs nothing. Type checkers
and editors read the imports; a test holds them to the table that Python reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blinksim._version import __version__ as __version__

if TYPE_CHECKING:
    from blinksim import plots as plot
    from blinksim.algorithms.building.plan import Plan as Plan
    from blinksim.algorithms.registry import register_algorithm as register_algorithm
    from blinksim.answers.advise import Advice as Advice
    from blinksim.answers.advise import advise as advise
    from blinksim.answers.bound import bound as bound
    from blinksim.answers.bound import gains as gains
    from blinksim.answers.bound import levels as levels
    from blinksim.answers.bound import losses as losses
    from blinksim.answers.bound import time_bound as time_bound
    from blinksim.answers.choice_times import ChoiceTime as ChoiceTime
    from blinksim.answers.compare import Comparison as Comparison
    from blinksim.answers.compare import Models as Models
    from blinksim.answers.compare import across_models as across_models
    from blinksim.answers.compare import compare as compare
    from blinksim.answers.logs.calibrate import Calibration as Calibration
    from blinksim.answers.logs.calibrate import calibrate as calibrate
    from blinksim.answers.logs.diagnose import Diagnosis as Diagnosis
    from blinksim.answers.logs.diagnose import diagnose as diagnose
    from blinksim.answers.logs.series import Series as Series
    from blinksim.answers.logs.series import read_series as read_series
    from blinksim.answers.measurements.measured import Measured as Measured
    from blinksim.answers.measurements.measured import measured as measured
    from blinksim.answers.measurements.public import PublicMeasurements as PublicMeasurements
    from blinksim.answers.pareto import Pareto as Pareto
    from blinksim.answers.pareto import Tradeoff as Tradeoff
    from blinksim.answers.pareto import pareto as pareto
    from blinksim.answers.place import Placements as Placements
    from blinksim.answers.place import place as place
    from blinksim.answers.project import Ranking as Ranking
    from blinksim.answers.project import contest as contest
    from blinksim.answers.project import project as project
    from blinksim.answers.project import rank as rank
    from blinksim.answers.sweep import Sweep as Sweep
    from blinksim.answers.sweep import sweep as sweep
    from blinksim.answers.synthesize import Synthesis as Synthesis
    from blinksim.answers.synthesize import synthesize as synthesize
    from blinksim.answers.tune import Tuning as Tuning
    from blinksim.answers.tune import tune as tune
    from blinksim.answers.verify import read_schedule as read_schedule
    from blinksim.answers.verify import verify as verify
    from blinksim.answers.verify_file import FileVerdict as FileVerdict
    from blinksim.answers.verify_file import verify_file as verify_file
    from blinksim.bounds.bound_result import Bound as Bound
    from blinksim.bounds.bound_result import BoundResult as BoundResult
    from blinksim.bounds.sensitivity import Change as Change
    from blinksim.bounds.time.time_bound import TimeBound as TimeBound
    from blinksim.collective import Collective as Collective
    from blinksim.errors import BlinksimError as BlinksimError
    from blinksim.errors import FileError as FileError
    from blinksim.errors import InfeasibleError as InfeasibleError
    from blinksim.errors import InputError as InputError
    from blinksim.errors import MissingError as MissingError
    from blinksim.errors import PluginError as PluginError
    from blinksim.exports import export as export
    from blinksim.exports import write as write
    from blinksim.formats.schedule_json import write_schedule as write_schedule
    from blinksim.formats.traffic_files import read_traffic as read_traffic
    from blinksim.formats.traffic_files import write_traffic as write_traffic
    from blinksim.gpu.execution.run import Execution as Execution
    from blinksim.gpu.execution.run import execute as execute
    from blinksim.machines import catalogue as catalogue
    from blinksim.machines import check as check
    from blinksim.machines import load as load
    from blinksim.machines import this_machine as this_machine
    from blinksim.papers.tables import Reproduction as Reproduction
    from blinksim.papers.tables import reproduce as reproduce
    from blinksim.question import Question as Question
    from blinksim.results import Term as Term
    from blinksim.schedule.model import Schedule as Schedule
    from blinksim.schedule.verify import Verdict as Verdict
    from blinksim.textio.whole_files import Exported as Exported
    from blinksim.timing.contest import Contest as Contest
    from blinksim.timing.model_registry import model as model
    from blinksim.timing.model_registry import register_model as register_model
    from blinksim.timing.projection_result import Projection as Projection
    from blinksim.timing.simulator import simulate as simulate
    from blinksim.timing.timeline import Timeline as Timeline
    from blinksim.timing.timing_model import Breakdown as Breakdown
    from blinksim.timing.timing_model import ScheduleModel as ScheduleModel
    from blinksim.topology.graph import Device as Device
    from blinksim.topology.graph import Link as Link
    from blinksim.topology.graph import Topology as Topology
    from blinksim.topology.networkx_reader import from_networkx as from_networkx
    from blinksim.topology.rules import Finding as Finding
    from blinksim.traffic import Traffic as Traffic
    from blinksim.traffic import expert_traffic as expert_traffic
else:
    _HOME = {
        "Advice": "blinksim.answers.advise",
        "BlinksimError": "blinksim.errors",
        "Bound": "blinksim.bounds.bound_result",
        "BoundResult": "blinksim.bounds.bound_result",
        "Breakdown": "blinksim.timing.timing_model",
        "Calibration": "blinksim.answers.logs.calibrate",
        "Change": "blinksim.bounds.sensitivity",
        "ChoiceTime": "blinksim.answers.choice_times",
        "Collective": "blinksim.collective",
        "Comparison": "blinksim.answers.compare",
        "Contest": "blinksim.timing.contest",
        "Device": "blinksim.topology.graph",
        "Diagnosis": "blinksim.answers.logs.diagnose",
        "Execution": "blinksim.gpu.execution.run",
        "Exported": "blinksim.textio.whole_files",
        "FileError": "blinksim.errors",
        "FileVerdict": "blinksim.answers.verify_file",
        "Finding": "blinksim.topology.rules",
        "InfeasibleError": "blinksim.errors",
        "InputError": "blinksim.errors",
        "Link": "blinksim.topology.graph",
        "Measured": "blinksim.answers.measurements.measured",
        "MissingError": "blinksim.errors",
        "Models": "blinksim.answers.compare",
        "Pareto": "blinksim.answers.pareto",
        "Placements": "blinksim.answers.place",
        "Plan": "blinksim.algorithms.building.plan",
        "PluginError": "blinksim.errors",
        "Projection": "blinksim.timing.projection_result",
        "PublicMeasurements": "blinksim.answers.measurements.public",
        "Question": "blinksim.question",
        "Ranking": "blinksim.answers.project",
        "Reproduction": "blinksim.papers.tables",
        "Schedule": "blinksim.schedule.model",
        "ScheduleModel": "blinksim.timing.timing_model",
        "Series": "blinksim.answers.logs.series",
        "Sweep": "blinksim.answers.sweep",
        "Synthesis": "blinksim.answers.synthesize",
        "Term": "blinksim.results",
        "TimeBound": "blinksim.bounds.time.time_bound",
        "Timeline": "blinksim.timing.timeline",
        "Topology": "blinksim.topology.graph",
        "Tradeoff": "blinksim.answers.pareto",
        "Traffic": "blinksim.traffic",
        "Tuning": "blinksim.answers.tune",
        "Verdict": "blinksim.schedule.verify",
        "across_models": "blinksim.answers.compare",
        "advise": "blinksim.answers.advise",
        "bound": "blinksim.answers.bound",
        "calibrate": "blinksim.answers.logs.calibrate",
        "catalogue": "blinksim.machines",
        "check": "blinksim.machines",
        "compare": "blinksim.answers.compare",
        "contest": "blinksim.answers.project",
        "diagnose": "blinksim.answers.logs.diagnose",
        "execute": "blinksim.gpu.execution.run",
        "expert_traffic": "blinksim.traffic",
        "export": "blinksim.exports",
        "from_networkx": "blinksim.topology.networkx_reader",
        "gains": "blinksim.answers.bound",
        "levels": "blinksim.answers.bound",
        "load": "blinksim.machines",
        "losses": "blinksim.answers.bound",
        "measured": "blinksim.answers.measurements.measured",
        "model": "blinksim.timing.model_registry",
        "pareto": "blinksim.answers.pareto",
        "place": "blinksim.answers.place",
        "project": "blinksim.answers.project",
        "rank": "blinksim.answers.project",
        "read_schedule": "blinksim.answers.verify",
        "read_series": "blinksim.answers.logs.series",
        "read_traffic": "blinksim.formats.traffic_files",
        "register_algorithm": "blinksim.algorithms.registry",
        "register_model": "blinksim.timing.model_registry",
        "reproduce": "blinksim.papers.tables",
        "simulate": "blinksim.timing.simulator",
        "sweep": "blinksim.answers.sweep",
        "synthesize": "blinksim.answers.synthesize",
        "this_machine": "blinksim.machines",
        "time_bound": "blinksim.answers.bound",
        "tune": "blinksim.answers.tune",
        "verify": "blinksim.answers.verify",
        "verify_file": "blinksim.answers.verify_file",
        "write": "blinksim.exports",
        "write_schedule": "blinksim.formats.schedule_json",
        "write_traffic": "blinksim.formats.traffic_files",
    }

    def __getattr__(name):
        from importlib import import_module

        if name == "plot":
            value = import_module("blinksim.plots")
        elif name in _HOME:
            value = getattr(import_module(_HOME[name]), name)
        else:
            raise AttributeError(f"module 'blinksim' has no attribute {name!r}")
        globals()[name] = value
        return value

    def __dir__():
        return [*__all__, "__version__"]


__all__ = [
    "Advice",
    "BlinksimError",
    "Bound",
    "BoundResult",
    "Breakdown",
    "Calibration",
    "Change",
    "ChoiceTime",
    "Collective",
    "Comparison",
    "Contest",
    "Device",
    "Diagnosis",
    "Execution",
    "Exported",
    "FileError",
    "FileVerdict",
    "Finding",
    "InfeasibleError",
    "InputError",
    "Link",
    "Measured",
    "MissingError",
    "Models",
    "Pareto",
    "Placements",
    "Plan",
    "PluginError",
    "Projection",
    "PublicMeasurements",
    "Question",
    "Ranking",
    "Reproduction",
    "Schedule",
    "ScheduleModel",
    "Series",
    "Sweep",
    "Synthesis",
    "Term",
    "TimeBound",
    "Timeline",
    "Topology",
    "Tradeoff",
    "Traffic",
    "Tuning",
    "Verdict",
    "across_models",
    "advise",
    "bound",
    "calibrate",
    "catalogue",
    "check",
    "compare",
    "contest",
    "diagnose",
    "execute",
    "expert_traffic",
    "export",
    "from_networkx",
    "gains",
    "levels",
    "load",
    "losses",
    "measured",
    "model",
    "pareto",
    "place",
    "plot",
    "project",
    "rank",
    "read_schedule",
    "read_series",
    "read_traffic",
    "register_algorithm",
    "register_model",
    "reproduce",
    "simulate",
    "sweep",
    "synthesize",
    "this_machine",
    "time_bound",
    "tune",
    "verify",
    "verify_file",
    "write",
    "write_schedule",
    "write_traffic",
]
