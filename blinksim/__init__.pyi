# The public names: for type checkers and editors, and for `__init__.py`, which loads them when they are used.

from blinksim import plots as plot
from blinksim._version import __version__ as __version__
from blinksim.algorithms.building.plan import Plan
from blinksim.algorithms.registry import register_algorithm
from blinksim.answers.advise import Advice, advise
from blinksim.answers.bound import bound, gains, levels, losses, time_bound, together
from blinksim.answers.compare import (
    Buckets,
    Comparison,
    MachineComparison,
    Models,
    across_models,
    buckets,
    compare,
    compare_machines,
)
from blinksim.answers.expect import Expectations, expect
from blinksim.answers.health import Health, health
from blinksim.answers.logs.calibrate import Calibration, calibrate
from blinksim.answers.logs.diagnose import Diagnosis, diagnose
from blinksim.answers.logs.expectation import Series, read_series
from blinksim.answers.logs.locate import Located, locate
from blinksim.answers.measurements.public import Measured, PublicMeasurements, measured
from blinksim.answers.pareto import Pareto, Tradeoff, pareto
from blinksim.answers.place import MeshOrder, Placements, place, place_mesh
from blinksim.answers.project import Answer, Ranking, contest, project, rank
from blinksim.answers.sweep import Sweep, sweep
from blinksim.answers.synthesize import Synthesis, synthesize
from blinksim.answers.tune import ChoiceTime, Tuning, tune
from blinksim.answers.verify import FileVerdict, read_schedule, verify, verify_file
from blinksim.bounds.bound_result import Bound, BoundResult
from blinksim.bounds.experts import draw_routing, expert_traffic, read_routing, write_routing
from blinksim.bounds.sensitivity import Change
from blinksim.bounds.time.time_bound import TimeBound
from blinksim.bounds.together import Together
from blinksim.collective import Collective
from blinksim.errors import BlinksimError, FileError, InfeasibleError, InputError, MissingError, PluginError
from blinksim.exports import export, write
from blinksim.formats.schedule_json import write_schedule
from blinksim.formats.traffic_files import read_traffic, write_traffic
from blinksim.gpu.execution.run import Execution, execute
from blinksim.machines import Question, catalogue, check, load, this_machine
from blinksim.papers.tables import Reproduction, reproduce
from blinksim.results import Term
from blinksim.schedule.model import Schedule
from blinksim.schedule.verify import Verdict
from blinksim.textio.text_files import Exported
from blinksim.timing.contest import Contest
from blinksim.timing.experts import project_experts
from blinksim.timing.model_registry import model, register_model
from blinksim.timing.projection_result import Projection
from blinksim.timing.simulator import Timeline, simulate
from blinksim.timing.timing_model import Breakdown, ScheduleModel
from blinksim.topology.graph import Device, Link, Topology, from_networkx
from blinksim.topology.rules import Finding
from blinksim.traffic import Routing, Traffic

__all__ = [
    "Advice", "Answer", "BlinksimError", "Bound", "BoundResult", "Breakdown", "Buckets", "Calibration",
    "Change", "ChoiceTime", "Collective", "Comparison", "Contest", "Device", "Diagnosis", "Execution",
    "Expectations", "Exported", "FileError", "FileVerdict", "Finding", "Health", "InfeasibleError",
    "InputError", "Link", "Located", "MachineComparison", "Measured", "MeshOrder", "MissingError", "Models", "Pareto",
    "Placements", "Plan", "PluginError", "Projection", "PublicMeasurements", "Question", "Ranking", "Reproduction",
    "Routing", "Schedule", "ScheduleModel", "Series", "Sweep", "Synthesis", "Term", "TimeBound", "Timeline",
    "Together", "Topology", "Tradeoff", "Traffic", "Tuning", "Verdict", "across_models", "advise", "bound",
    "buckets", "calibrate", "catalogue", "check", "compare", "compare_machines", "contest", "diagnose",
    "draw_routing", "execute", "expect", "expert_traffic", "export", "from_networkx", "gains", "health",
    "levels", "load", "locate", "losses", "measured", "model", "pareto", "place", "place_mesh", "plot", "project",
    "project_experts", "rank", "read_routing", "read_schedule", "read_series", "read_traffic", "register_algorithm",
    "register_model", "reproduce", "simulate", "sweep", "synthesize", "this_machine", "time_bound",
    "together", "tune", "verify", "verify_file", "write", "write_routing", "write_schedule", "write_traffic",
]  # fmt: skip
