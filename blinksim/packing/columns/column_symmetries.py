"""Symmetries of hops and of columns: permutations that map a choice of columns onto an equally good one."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

from blinksim.packing.columns.column_mix import Column
from blinksim.packing.columns.hops import Arc, Hops

# A permutation of the members, by vertex.
Symmetry = Mapping[int, int]
# Most symmetries, and steps of the search for them.
_SYMMETRIES, _STEPS = 6, 50_000


def hop_symmetries(hops: Hops) -> list[Symmetry]:
    """Permutations of the members, other than the identity, that map hops and what they share onto equal ones.

    At most `_SYMMETRIES`, by a search that gives up after `_STEPS`; those that leave no member in place come first.
    """
    members = hops.vertices[: hops.members]
    widths = {arc: tuple(sorted((hops.capacity[r], times) for r, times in load)) for arc, load in hops.loads.items()}
    users: dict[int, set[tuple[Arc, int]]] = {}
    for arc, load in hops.loads.items():
        for resource, times in load:
            users.setdefault(resource, set()).add((arc, times))
    shared = {(frozenset(use), hops.capacity[resource]) for resource, use in users.items()}
    found: list[Symmetry] = []
    steps = 0

    def alike(here: int, other: int, image: list[int]) -> bool:
        return all(
            widths.get((one, here)) == widths.get((to, other)) and widths.get((here, one)) == widths.get((other, to))
            for one, to in zip(members, image, strict=False)
        )

    def extend(image: list[int]) -> None:
        nonlocal steps
        steps += 1
        if len(found) == 4 * _SYMMETRIES or steps > _STEPS:
            return
        if len(image) == len(members):
            moves = dict(zip(members, image, strict=True))
            moved = {(frozenset(((moves[a], moves[b]), times) for (a, b), times in use), own) for use, own in shared}
            if moved == shared and image != list(members):
                found.append(moves)
            return
        here = members[len(image)]
        for other in members:
            if other not in image and alike(here, other, image):
                extend([*image, other])

    extend([])
    return sorted(found, key=lambda moves: sum(a == b for a, b in moves.items()))[:_SYMMETRIES]


def images(
    columns: Sequence[Column], symmetry: Symmetry, roots: Sequence[int], *, both: bool = False
) -> list[int] | None:
    """For each column the number of the one that the symmetry maps it to; None if some column has none.

    roots: the root of every group of columns. both: trees are used both ways, so that their roots do not matter.
    """
    group = {root: number for number, root in enumerate(roots)}

    def shape(arcs: Iterable[Arc]) -> Hashable:
        return frozenset(frozenset(arc) if both else arc for arc in arcs)

    place = {(shape(column.arcs), column.group): number for number, column in enumerate(columns)}
    found = []
    for column in columns:
        arcs = shape((symmetry[a], symmetry[b]) for a, b in column.arcs)
        number = place.get((arcs, column.group if both else group.get(symmetry[roots[column.group]], -1)))
        if number is None:
            return None
        found.append(number)
    return found


def column_orbits(image: Sequence[int]) -> list[int]:
    """For each column the least number in the cycle of `image` that it lies in."""
    orbit = [-1] * len(image)
    for start in range(len(image)):
        place = start
        while orbit[place] < 0:
            orbit[place] = start
            place = image[place]
    return orbit
