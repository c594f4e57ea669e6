"""The GPUs of a machine that a log of nccl-tests comes from."""

from __future__ import annotations

from blinksim.errors import InputError
from blinksim.formats import machine_yaml
from blinksim.formats.shipped.known_gpus import named
from blinksim.formats.shipped.machine_names import catalogue_file
from blinksim.nccl.logs.log_rows import Run
from blinksim.topology.graph import Topology


def members_of(run: Run, machine: Topology) -> tuple[str, ...]:
    """The members of `machine` (all its nodes) that the test ran on, in rank order.

    A log that does not list its ranks is assumed to cover all members. If it covers fewer, its device numbers name
    them; they count the GPUs of a node in file order. Raises `InputError` where ranks, hosts or numbers do not fit.
    """
    ranks = run.ranks or machine.ranks
    hosts = list(dict.fromkeys(place.host for place in run.places))
    if len(hosts) > max(1, machine.nodes):
        raise InputError(f"{run.path}: comes from {len(hosts)} hosts; add nodes={len(hosts)}")
    if ranks == machine.ranks:
        return machine.members
    if ranks > machine.ranks:
        raise InputError(
            f"{run.path}: has {ranks} ranks, but {machine.name} has {machine.ranks}; is it this machine? "
            "For a cluster give nodes="
        )
    hint = f"{run.path}: comes from {ranks} of the {machine.ranks} GPUs of {machine.name}; name them with members="
    if len(run.places) != ranks:
        raise InputError(hint)
    gpus: list[list[str]] = [[] for _ in range(max(1, machine.nodes))]
    for device in machine.devices:
        if device.holds and device.node >= 0:
            gpus[device.node].append(device.name)
    number = {host: node for node, host in enumerate(hosts)}
    chosen = []
    for place in sorted(run.places, key=lambda place: place.rank):
        node = gpus[number[place.host]]
        if place.device >= len(node):
            raise InputError(f"{hint}: there is no device {place.device} on a node")
        chosen.append(node[place.device])
    if len(set(chosen)) < len(chosen):
        raise InputError(f"{hint}: ranks share a device number")
    return tuple(chosen)


def other_gpus(run: Run, machine: Topology) -> str:
    """What to say if the log names GPUs of another model than the machine's; empty if it does not, or none is known."""
    for name in dict.fromkeys(place.name for place in run.places):
        known = named(name)
        twin = None if known is None else machine_yaml.read(catalogue_file(known.machine))
        logged, own = (_models(one) for one in (twin, machine))
        if logged and own and logged.isdisjoint(own):
            return f"{run.path}: ran on {name}, and the GPUs of {machine.name} are {', '.join(sorted(own))}"
    return ""


def _models(machine: Topology | None) -> set[str]:
    """The models of a machine's GPUs, without their form and memory: ``H100`` of ``H100-SXM5-80GB``."""
    if machine is None:
        return set()
    models = (machine.device(name).attributes.get("model") for name in machine.members)
    return {str(model).partition("-")[0] for model in models if model}


def check_members(run: Run, topology: Topology) -> None:
    """Raises `InputError` if the log says that it has another number of ranks than the chosen members."""
    if run.ranks and run.ranks != topology.ranks:
        raise InputError(f"{run.path}: has {run.ranks} ranks, and {topology.ranks} members are chosen")
