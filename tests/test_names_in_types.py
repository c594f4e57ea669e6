"""The names that editors complete are the names that the tables hold, in the same order."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from click import Choice

import blinksim as bs
from blinksim import exports, machines
from blinksim.algorithms.registry import REGISTRY, AlgorithmName
from blinksim.collective import COLLECTIVES, CollectiveName
from blinksim.formats.shipped import machine_names
from blinksim.gpu.execution import run
from blinksim.gpu.programs import dtypes, program
from blinksim.timing import model_registry, simulation_options

ROOT = Path(__file__).resolve().parents[1]

# The type, what it is to name, and where it is written.
TABLES: dict[str, tuple[Any, Iterable[str], str]] = {
    "collectives": (CollectiveName, COLLECTIVES, "CollectiveName in blinksim/collective.py"),
    "algorithms": (AlgorithmName, REGISTRY, "AlgorithmName in blinksim/algorithms/registry.py"),
    "executors": (run.ExecutorName, run.EXECUTORS, "ExecutorName in blinksim/gpu/execution/run.py"),
    "element types": (dtypes.DtypeName, dtypes.ELEMENT_TYPES, "DtypeName in blinksim/gpu/programs/dtypes.py"),
    "reductions": (dtypes.ReductionName, dtypes.REDUCTIONS, "ReductionName in blinksim/gpu/programs/dtypes.py"),
    "protocols": (
        simulation_options.ProtocolName,
        simulation_options.PROTOCOLS,
        "ProtocolName in blinksim/timing/simulation_options.py",
    ),
    "protocols of GPUs": (program.ProtocolName, program.PROTOCOLS, "ProtocolName in blinksim/gpu/programs/program.py"),
    "formats of machines": (exports.MachineFormatName, ("nccl-topo",), "MachineFormatName in blinksim/exports.py"),
    "formats": (exports.FormatName, exports.FORMATS, "FormatName in blinksim/exports.py"),
}


# What a new file adds; its name need not be in the type.
FOUND_BY_FILE = ("algorithms", "formats")


def differences(named: tuple[str, ...], held: tuple[str, ...], where: str) -> list[str]:
    """What to add to a type, to take out of it, or else to move, in words."""
    found = [f"add {name!r} to {where}" for name in held if name not in named]
    found += [f"take {name!r} out of {where}: there is none" for name in named if name not in held]
    if not found and named != held:
        first = next(name for name, other in zip(held, named, strict=True) if name != other)
        found.append(f"order the names of {where} as the table does, from {first!r} on")
    return found


@pytest.mark.parametrize("what", TABLES)
def test_types_name_what_the_tables_hold(what: str) -> None:
    type_, table, where = TABLES[what]
    held = [name for name in table if what not in FOUND_BY_FILE or name in get_args(type_)]
    assert differences(get_args(type_), tuple(held), where) == []


def test_a_name_that_differs_is_said_with_its_file() -> None:
    for _, _, where in TABLES.values():
        name, _, file = where.partition(" in ")
        assert f"\n{name} = Literal[" in (ROOT / file).read_text(encoding="utf-8")
    assert differences(("a", "c"), ("a", "testbox-x4", "c"), "T in t.py") == ["add 'testbox-x4' to T in t.py"]
    assert differences(("a", "b"), ("a",), "T in t.py") == ["take 'b' out of T in t.py: there is none"]
    (told,) = differences(("a", "c", "b"), ("a", "b", "c"), "T in t.py")
    assert told.endswith("from 'b' on")


def test_types_name_models_alone() -> None:
    # A new model need not be named there.
    assert set(get_args(model_registry.ModelName)) <= set(model_registry.names())
    assert set(get_args(model_registry.ScheduleModelName)) <= set(model_registry.schedule_models())


def test_rates_are_those_of_the_catalogue() -> None:
    named = {rates for name in machine_names.names() for rates in machine_names.rate_names(name)}
    assert set(get_args(machines.RatesName)) == named


def test_the_command_line_offers_the_same_names() -> None:
    from blinksim.cli.commands import COMMANDS
    from blinksim.cli.options import built

    assert {"run", "simulate"} <= COMMANDS.keys()
    run_command, simulate_command = built("run"), built("simulate")
    offered = {
        parameter.name: tuple(parameter.type.choices)
        for command in (run_command, simulate_command)
        for parameter in command.params
        if isinstance(parameter.type, Choice) and (command, parameter.name) != (run_command, "protocol")
    }
    assert offered == {
        "executor": ("auto", *get_args(run.ExecutorName)),
        "service": get_args(simulation_options.ServiceName),
        "offer": get_args(simulation_options.OfferName),
        "protocol": get_args(simulation_options.ProtocolName),
        "switching": get_args(simulation_options.SwitchingName),
        "messages": get_args(simulation_options.MessagesName),
    }


def test_the_command_line_offers_every_document() -> None:
    from blinksim.cli.options import built
    from blinksim.papers.tables import DOCUMENTS

    offered = built("reproduce").params[0].type
    assert isinstance(offered, Choice)
    assert tuple(offered.choices) == tuple(DOCUMENTS)


def literals(hint: object) -> set[object]:
    """The values of every `Literal` inside a type."""
    if get_origin(hint) is Literal:
        return set(get_args(hint))
    return set().union(*(literals(inner) for inner in get_args(hint)))


COMPLETED = {
    ("project", "collective"): "allreduce",
    ("project", "algorithm"): "double_binary",
    ("project", "model"): "nccl-tuner",
    ("contest", "names"): "double_binary",
    ("contest", "model"): "simulate",
    ("compare", "algorithms"): "double_binary",
    ("compare", "model"): "simulate",
    ("across_models", "models"): "nccl-tuner",
    ("across_models", "algorithms"): "double_binary",
    ("rank", "algorithms"): "double_binary",
    ("rank", "model"): "nccl-tuner",
    ("sweep", "algorithms"): "double_binary",
    ("sweep", "model"): "aurora-projection",
    ("synthesize", "algorithm"): "packed",
    ("execute", "executor"): "cupy",
    ("execute", "dtype"): "bfloat16",
    ("execute", "op"): "prod",
    ("export", "name"): "msccl-xml",
    ("load", "rates"): "nccl",
    ("this_machine", "rates"): "nccl",
    ("place", "relays"): "idle",
    ("Question", "rates"): "nccl",
    ("simulate", "service"): "ordered",
    ("simulate", "protocol"): "ll128",
    ("read_series", "collective"): "allgather",
}


@pytest.mark.parametrize(("name", "parameter"), COMPLETED)
def test_signatures_offer_the_names(name: str, parameter: str) -> None:
    thing = getattr(bs, name)
    module = inspect.getmodule(inspect.unwrap(thing))
    assert module is not None
    wanted = thing if inspect.isclass(thing) else {parameter: thing.__annotations__[parameter]}
    if isinstance(wanted, dict):
        hint = eval(wanted[parameter], _names(module))
    else:
        hint = get_type_hints(wanted, _names(module))[parameter]
    assert COMPLETED[name, parameter] in literals(hint)


def _names(module: object) -> dict[str, Any]:
    """A module's names, with those that only type checkers see."""
    return {"Topology": bs.Topology, "Schedule": bs.Schedule, **vars(module)}
