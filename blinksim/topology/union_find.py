"""Disjoint sets that grow together (Galler and Fischer 1964), with paths halved on the way (van Leeuwen 1977)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)


class UnionFind(Generic[Item]):
    """Every one of `items` is a set of its own, until `join` makes one set of two."""

    def __init__(self, items: Iterable[Item]) -> None:
        self._parent = {item: item for item in items}

    def find(self, item: Item) -> Item:
        """The item that stands for the set of `item`."""
        parent = self._parent
        above = parent[item]
        while above != item:
            parent[item] = above = parent[above]
            item, above = above, parent[above]
        return item

    def join(self, item: Item, other: Item) -> None:
        """Make one set of two; what stands for the set of `other` stands for both."""
        self._parent[self.find(item)] = self.find(other)

    def sets(self) -> list[list[Item]]:
        """The sets, and the items of each, in the order of `items`."""
        found: dict[Item, list[Item]] = {}
        for item in self._parent:
            found.setdefault(self.find(item), []).append(item)
        return list(found.values())
