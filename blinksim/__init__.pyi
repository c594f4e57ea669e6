# The public names: for type checkers and editors, and for `__init__.py`, which loads them when they are used.

from blinksim import plots as plot  # noqa: F401
from blinksim._version import __version__ as __version__
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
from blinksim.answers.logs.locate import Located as Located, locate as locate
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
from blinksim.machines import (
    Question as Question,
    catalogue as catalogue,
    check as check,
    load as load,
    this_machine as this_machine,
)
from blinksim.papers.tables import Reproduction as Reproduction, reproduce as reproduce
from blinksim.results import Term as Term
from blinksim.schedule.model import Schedule as Schedule
from blinksim.schedule.verify import Verdict as Verdict
from blinksim.textio.text_files import Exported as Exported
from blinksim.timing.contest import Contest as Contest
from blinksim.timing.experts import project_experts as project_experts
from blinksim.timing.model_registry import model as model, register_model as register_model
from blinksim.timing.projection_result import Projection as Projection
from blinksim.timing.simulator import Timeline as Timeline, simulate as simulate
from blinksim.timing.timing_model import Breakdown as Breakdown, ScheduleModel as ScheduleModel
from blinksim.topology.graph import Device as Device, Link as Link, Topology as Topology
from blinksim.topology.networkx_reader import from_networkx as from_networkx
from blinksim.topology.rules import Finding as Finding
from blinksim.traffic import Routing as Routing, Traffic as Traffic

__all__: list[str]
