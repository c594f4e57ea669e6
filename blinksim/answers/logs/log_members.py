"""Which GPUs of a machine a log of nccl-tests is of."""

from __future__ import annotations

from blinksim.errors import InputError
from blinksim.nccl.logs.log_records import Run
from blinksim.topology.graph import Topology


def members_of(run: Run, machine: Topology) -> tuple[str, ...]:
    """The members of `machine` (all its nodes) that the test ran on, in rank order.

    A log that does not list its ranks is taken to be of all of them. A log of fewer says by its device numbers which
    ones; they count the GPUs of a node in file order. Raises `InputError` where ranks, hosts or numbers do not fit.
    """
    ranks = run.ranks or machine.ranks
    hosts = list(dict.fromkeys(place.host for place in run.places))
    if len(hosts) > max(1, machine.nodes):
        raise InputError(f"{run.path}: is of {len(hosts)} hosts; add --nodes {len(hosts)}")
    if ranks == machine.ranks:
        return machine.members
    if ranks > machine.ranks:
        raise InputError(
            f"{run.path}: is of {ranks} ranks, but {machine.name} has {machine.ranks}; is it this machine? "
            "For a cluster add --nodes"
        )
    hint = f"{run.path}: is of {ranks} of the {machine.ranks} GPUs of {machine.name}; say which with --members"
    if len(run.places) != ranks:
        raise InputError(hint)
    gpus = [[d.name for d in machine.devices if d.holds and d.node == node] for node in range(max(1, machine.nodes))]
    chosen = []
    for place in sorted(run.places, key=lambda place: place.rank):
        node = gpus[hosts.index(place.host)]
        if place.device >= len(node):
            raise InputError(f"{hint}: there is no device {place.device} on a node")
        chosen.append(node[place.device])
    if len(set(chosen)) < len(chosen):
        raise InputError(f"{hint}: ranks share a device number")
    return tuple(chosen)


def check_members(run: Run, topology: Topology) -> None:
    """Raises `InputError` if the log says that it has another number of ranks than the chosen members."""
    if run.ranks and run.ranks != topology.ranks:
        raise InputError(f"{run.path}: is of {run.ranks} ranks, and {topology.ranks} members are chosen")
