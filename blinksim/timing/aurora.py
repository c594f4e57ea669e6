"""Equations 1 to 10 of the Aurora allreduce projection, in the reading that gives its tables.

A large allreduce is a reduce-scatter inside the node, an allreduce between the nodes and an allgather inside
the node; each part takes its bytes over the bandwidth of the links that carry them, without latency and
arithmetic (Aurora allreduce projection, 2025, section 3.1; the reading per regime is inferred from its five
tables). Every function takes Z, the size in bytes, and `Constants` in bytes/s, and returns terms in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from blinksim.errors import InfeasibleError, InputError
from blinksim.timing.terms import Term

BANDWIDTHS = ("mdfi", "xe", "device_to_host", "host_to_switch", "switch_to_nic", "pcie", "nic", "memory")


@dataclass(frozen=True, slots=True)
class Constants:
    """The variables of section 2, bandwidths in bytes/s of one link and direction.

    mdfi: between the two tiles of a card. xe: between two cards. device_to_host, host_to_switch, switch_to_nic: the
    hops of the chain model (switch_to_nic is listed in section 2 and used in no equation). pcie: the host copies of
    equation 6. nic: one NIC. memory: GPU memory, which bounds the additions. nics_per_node and nic_efficiency (the
    share of their joint bandwidth that can be had): equation 4. parallel_links: n_l of equations 1 and 7.
    """

    mdfi: Fraction
    xe: Fraction
    device_to_host: Fraction
    host_to_switch: Fraction
    switch_to_nic: Fraction
    pcie: Fraction
    nic: Fraction
    memory: Fraction
    nics_per_node: int
    nic_efficiency: Fraction
    parallel_links: int


def _term(name: str, amount: Fraction | int, bandwidth: Fraction, limit: str) -> Term:
    return Term(name, float(amount / bandwidth), limit)


# --- the equations as they are written ------------------------------------------------------------------------------


def chain_inter_node(size: int, nodes: int, ranks_per_node: int, constants: Constants) -> tuple[Term, ...]:
    """Equations 1 to 3: the whole vector goes from GPU to GPU through hosts and NICs, 2(n_t - 1)/n_l times.

    n_t counts all ranks, n_l the parallel links (1). The fourth term is the copy back to the device, which the paper
    writes with the device-to-host bandwidth.
    """
    times = size * Fraction(2 * (nodes * ranks_per_node - 1), constants.parallel_links)
    return (
        _term("device to host", times, constants.device_to_host, "device_to_host"),
        _term("host to switch", times, constants.host_to_switch, "host_to_switch"),
        _term("through the NIC", times, constants.nic, "nic"),
        _term("host to device", times, constants.device_to_host, "device_to_host"),
        _term("additions", times, constants.memory, "memory"),
    )


def chain_intra_node(size: int, ranks: int, constants: Constants) -> tuple[Term, ...]:
    """Equations 7 to 9: the chain inside one node, over Xe links."""
    times = size * Fraction(2 * (ranks - 1), constants.parallel_links)
    return (
        _term("from card to card", times, constants.xe, "xe"),
        _term("additions", times, constants.memory, "memory"),
    )


def scale_out(size: int, nodes: int, ranks_per_node: int, constants: Constants) -> Term:
    """The middle term of equation 4: an allreduce between nodes, 2Z(N-1)/N over the NICs that the ranks can drive.

    One rank drives one NIC, so min(R, NICs per node) are in use; the paper does not print the count.
    """
    nics = min(ranks_per_node, constants.nics_per_node)
    bandwidth = constants.nic_efficiency * nics * constants.nic
    return _term("allreduce between nodes", Fraction(2 * size * (nodes - 1), nodes), bandwidth, "nic")


def reduce_scatter_allgather(
    size: int, nodes: int, ranks_per_node: int, constants: Constants, *, xe_links: Fraction | int
) -> tuple[Term, ...]:
    """Equations 4 and 5: half the vector over `xe_links` Xe links (n_Xe), the allreduce between nodes, and back."""
    bandwidth = xe_links * constants.xe
    return (
        _term("reduce-scatter between cards", Fraction(size, 2), bandwidth, "xe"),
        scale_out(size, nodes, ranks_per_node, constants),
        _term("allgather between cards", Fraction(size, 2), bandwidth, "xe"),
    )


def host_copies(size: int, ranks_per_node: int, constants: Constants) -> tuple[Term, ...]:
    """What equation 6 adds to equation 4: each rank copies its share to the host and back, in both phases."""
    both_ways = Fraction(2 * size, ranks_per_node)
    return (
        _term("copies to the host and back, reduce-scatter", both_ways, constants.pcie, "pcie"),
        _term("copies to the host and back, allgather", both_ways, constants.pcie, "pcie"),
    )


def scale_up(size: int, ranks: int, constants: Constants) -> tuple[Term, ...]:
    """Equation 10: one node; a rank's share over an Xe link and over MDFI, there and back."""
    share = Fraction(size, ranks)
    return (
        _term("reduce-scatter between cards", share, constants.xe, "xe"),
        _term("allgather between cards", share, constants.xe, "xe"),
        _term("reduce-scatter in the card", share, constants.mdfi, "mdfi"),
        _term("allgather in the card", share, constants.mdfi, "mdfi"),
    )


# --- how they are read ----------------------------------------------------------------------------------------------


def check_ranks(nodes: int, ranks_per_node: int) -> None:
    """Raises `InputError` unless there are two ranks or more to combine."""
    if nodes < 1 or ranks_per_node < 1:
        raise InputError(f"{nodes} nodes with {ranks_per_node} ranks each; give at least 1 of both")
    if nodes * ranks_per_node == 1:
        raise InputError("a collective needs at least two ranks; give nodes=2 or ranks_per_node=2")


def chain(size: int, nodes: int, ranks_per_node: int, constants: Constants) -> tuple[Term, ...]:
    """The chain model: equation 7 on one node, equation 1 on several. Raises `InputError` for a single rank."""
    check_ranks(nodes, ranks_per_node)
    if nodes == 1:
        return chain_intra_node(size, ranks_per_node, constants)
    return chain_inter_node(size, nodes, ranks_per_node, constants)


def as_written(size: int, nodes: int, ranks_per_node: int, constants: Constants) -> tuple[Term, ...]:
    """Equation 10 on one node and equation 4 on several, to the letter, with n_Xe = R/2 and at least 1.

    This is not how the tables were made: it charges Xe links to a rank that is alone in its node, and to two ranks that
    share a card.
    """
    check_ranks(nodes, ranks_per_node)
    if nodes == 1:
        return scale_up(size, ranks_per_node, constants)
    links = max(Fraction(1), Fraction(ranks_per_node, 2))
    return reduce_scatter_allgather(size, nodes, ranks_per_node, constants, xe_links=links)


def exact_reading(
    size: int, nodes: int, ranks_per_node: int, constants: Constants, *, pcie: bool = False, hide_mdfi: bool = True
) -> tuple[Term, ...]:
    """The reading that gives the published tables, by nodes N and ranks per node R.

    N = 1: equation 10; with R = 2 the ranks sit on two cards and the MDFI terms fall away.
    N >= 2, R = 1: the scale-up terms fall away. R = 2: both ranks share a card, and MDFI takes the place of the Xe
    links. R >= 4 and even: n_Xe = R/2 (each tile spreads its half over as many links as there are cards), MDFI hidden
    behind the Xe links, or added in front and behind if not `hide_mdfi` (section 3.1: it can matter for small sizes).
    pcie: equation 6, which the paper gives between nodes only.

    Raises `InfeasibleError` for an odd R above 1, which leaves a card half used, and for `pcie` on one node: the
    paper covers neither; `InputError` for a single rank.
    """
    check_ranks(nodes, ranks_per_node)
    if ranks_per_node > 1 and ranks_per_node % 2:
        raise InfeasibleError(
            f"{ranks_per_node} ranks per node leave a card half used, which the projection does not cover; "
            f"take {ranks_per_node - 1} or {ranks_per_node + 1}"
        )
    if nodes == 1:
        if pcie:
            raise InfeasibleError("equation 6, with copies to the host, is for 2 nodes or more; use aurora-projection")
        terms = scale_up(size, ranks_per_node, constants)
        return terms if ranks_per_node > 2 else tuple(term for term in terms if term.limit != "mdfi")
    half = Fraction(size, 2)
    between = scale_out(size, nodes, ranks_per_node, constants)
    before = _term("reduce-scatter in the card", half, constants.mdfi, "mdfi")
    after = _term("allgather in the card", half, constants.mdfi, "mdfi")
    if ranks_per_node == 1:
        terms = (between,)
    elif ranks_per_node == 2:
        terms = (before, between, after)
    else:
        cards = ranks_per_node // 2
        terms = reduce_scatter_allgather(size, nodes, ranks_per_node, constants, xe_links=cards)
        if not hide_mdfi:
            terms = (before, *terms, after)
    return (*terms, *host_copies(size, ranks_per_node, constants)) if pcie else terms
