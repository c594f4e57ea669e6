"""Machines side by side, and many calls in place of one: the time that libraries take, for people who choose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from blinksim.answers.project import Answer, answer
from blinksim.collective import Collective, CollectiveLike
from blinksim.errors import InputError
from blinksim.machines import MachineLike
from blinksim.question import Question
from blinksim.results import Result, keyed
from blinksim.textio.text_table import count, table
from blinksim.timing.library_model import SHARE, Library
from blinksim.timing.projection_result import Projection
from blinksim.units import SIZES, Sizes, format_rate, format_size, format_time, size_of, sizes_of

# Calls together may take so many times as long as one call of all bytes, to be called as good.
_AS_GOOD = 1.1


@dataclass(frozen=True, repr=False)
class MachineComparison(Result):
    """What a collective takes on several machines, with their libraries.

    Attributes
    ----------
    collective : Collective
        What runs.
    answers : mapping
        The answers by size, by machine.
    prices : mapping
        What a node costs an hour, by machine, where that was given.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.compare_machines(["p5", "p5en"], "allreduce", ["1GiB"], nodes=2, prices={"p5": 55.0})
    >>> [row["busbw_per_price"] is not None for row in found.rows()]
    [True, False]
    """

    collective: Collective
    answers: Mapping[str, tuple[Answer, ...]]
    prices: Mapping[str, float] = field(default_factory=dict)

    def rows(self) -> list[dict[str, Any]]:
        """One row per machine and size; busbw_per_price: GB/s for each unit of price an hour of all nodes."""
        return [
            {"machine": name, "size_bytes": one.size, "ranks": len(one.members), **one.row()}
            | {"cannot_take_less_s": one.least.time_s if one.least else None, "busbw_per_price": self._worth(name, one)}
            for name, answers in self.answers.items()
            for one in answers
        ]

    def _worth(self, name: str, one: Answer) -> float | None:
        price = self.prices.get(name)
        return None if price is None else one.busbw_GBps / (price * one.details["nodes"])

    def to_dict(self) -> dict[str, Any]:
        """The rows."""
        return keyed(self, "collective=collective.name rows", rows=self.rows())

    def sentence(self) -> str:
        """The answer in one line: the quickest at the largest size."""
        last = {name: answers[-1] for name, answers in self.answers.items()}
        best = min(last, key=lambda name: last[name].time_s)
        size, time = format_size(last[best].size), format_time(last[best].time_s)
        return f"{self.collective} of {size}: {best} is quickest, {time} with {last[best].library}"

    def text(self) -> str:
        """The sentence, and a table by size."""
        rows = []
        for at, _ in enumerate(next(iter(self.answers.values()))):
            for name, answers in self.answers.items():
                one, worth = answers[at], self._worth(name, answers[at])
                ends = f"{format_time(one.low_s)} to {format_time(one.high_s)}"
                row = [format_size(one.size), name, str(len(one.members)), format_time(one.time_s), ends]
                row += [format_rate(one.busbw), str(one.details["basis"])]
                rows.append([*row, *([] if not self.prices else ["-" if worth is None else f"{worth:.3g}"])])
        head = ["size", "machine", "GPUs", "takes", f"{SHARE} runs", "busbw", "from"]
        head += ["GB/s per price"] if self.prices else []
        return "\n".join((self.sentence(), "", table(head, rows, left=(1, 6))))

    def __repr__(self) -> str:
        return f"<MachineComparison: {self.sentence()}>"


def compare_machines(
    machines: Sequence[Question | MachineLike],
    collective: CollectiveLike,
    sizes: Sizes | None = None,
    *,
    nodes: int = 1,
    prices: Mapping[str, float] | None = None,
    library: Library | None = None,
) -> MachineComparison:
    """What a collective takes on several machines.

    Parameters
    ----------
    machines : sequence of Question, str, path or Topology
        As for `project`, at least two.
    collective : str or Collective
        Such as ``"allreduce"``.
    sizes : iterable of int or str, or str, optional
        As for `compare`.
    nodes : int
        Nodes of each machine that is no question.
    prices : mapping, optional
        What a node costs an hour, by the name of the machine as it is given, in any currency.
    library : Library, optional
        The version of NCCL, and whether switches may add.

    Returns
    -------
    MachineComparison
        The answers by machine.

    Raises
    ------
    InputError
        For fewer than two machines, one that is named twice, and prices of others.
    InfeasibleError
        As `project` raises it.

    Examples
    --------
    >>> import blinksim as bs
    >>> print(bs.compare_machines(["hgx-h100", "dgx-a100"], "allreduce", ["1GiB"]).sentence().partition(",")[0])
    allreduce of 1 GiB: hgx-h100 is quickest
    """
    asked = [one if isinstance(one, Question) else Question(one, nodes=nodes) for one in machines]
    names = [str(getattr(one.machine, "name", one.machine)) for one in asked]
    if len(names) < 2 or len(set(names)) < len(names):
        raise InputError(f"machines {', '.join(names)}: name at least two, each once")
    strangers = sorted({*(prices or {})} - {*names})
    if strangers:
        raise InputError(f"there are prices of {', '.join(strangers)}, and the machines are {', '.join(names)}")
    wanted, ordered = Collective.of(collective), sizes_of(SIZES if sizes is None else sizes)
    answers = {
        name: tuple(answer(one, wanted, ordered, library=library)) for name, one in zip(names, asked, strict=True)
    }
    return MachineComparison(wanted, answers, dict(prices or {}))


@dataclass(frozen=True, repr=False)
class Buckets(Result):
    """Many calls of one size, one after another, in place of one call of all bytes.

    Attributes
    ----------
    bytes : int
        Of all calls together.
    calls : tuple of (int, Projection)
        How many calls, and what one of them takes: the size that was asked, then powers of two up to all bytes.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.buckets("hgx-h100", "allreduce", "14GB", "25MiB")
    >>> found.rows()[0]["calls"], found.rows()[-1]["calls"]
    (535, 1)
    """

    bytes: int
    calls: tuple[tuple[int, Projection], ...]

    def rows(self) -> list[dict[str, Any]]:
        """One row for each size of a bucket."""
        return [
            {"bucket_bytes": one.size, "calls": calls, "call_s": one.time_s, "time_s": calls * one.time_s}
            | {f"{end}_s": calls * one.details[f"interval_{end}_s"] for end in ("low", "high")}
            for calls, one in self.calls
        ]

    def to_dict(self) -> dict[str, Any]:
        """The rows, and the smallest bucket that is as good as one call."""
        return {"bytes": self.bytes, "rows": self.rows(), "best_bucket_bytes": self.best.size}

    @property
    def best(self) -> Projection:
        """The smallest bucket whose calls take at most a tenth longer than one call of all bytes."""
        most = _AS_GOOD * self.calls[-1][1].time_s
        return min((one for calls, one in self.calls if calls * one.time_s <= most), key=lambda one: one.size)

    def sentence(self) -> str:
        """The answer in one line."""
        calls, one = self.calls[0]
        low, high = (format_time(calls * one.details[f"interval_{end}_s"]) for end in ("low", "high"))
        return (
            f"{format_size(self.bytes)} in {count(calls, f'{one.collective} call')} of {format_size(one.size)} with "
            f"{one.details['library']}: {format_time(calls * one.time_s)} ({low} to {high}, {SHARE} runs)"
        )

    def text(self) -> str:
        """The sentence, what one call takes, and from which size on buckets are as good."""
        (_, one), (_, whole) = self.calls[0], self.calls[-1]
        lines = [self.sentence(), f"  one bucket        {format_time(one.time_s)}, busbw {format_rate(one.busbw)}"]
        lines.append(f"  all in one call   {format_time(whole.time_s)}")
        lines.append(
            f"  as good           buckets from {format_size(self.best.size)} on cost at most 10 % more than one call"
        )
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Buckets: {self.sentence()}>"


def buckets(
    machine: Question | MachineLike,
    collective: CollectiveLike,
    total: int | float | str,
    bucket: int | float | str,
    library: Library | None = None,
) -> Buckets:
    """What many calls take, one after another, such as the gradients of a training step in buckets.

    Parameters
    ----------
    machine : Question, str, path or Topology
        As for `project`.
    collective : str or Collective
        Such as ``"allreduce"``.
    total : int or str
        Bytes of all calls, or text such as ``"14GB"``.
    bucket : int or str
        Bytes of a call; the last one is taken for a whole one.
    library : Library, optional
        The version of NCCL, and whether switches may add.

    Returns
    -------
    Buckets
        The times by size of a bucket.

    Raises
    ------
    InputError
        For a bucket larger than all bytes.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.buckets("hgx-h100", "allreduce", "1GiB", "64MiB")
    >>> found.rows()[0]["calls"]
    16
    """
    whole, first = size_of(total), size_of(bucket)
    if first > whole:
        raise InputError(f"bucket={format_size(first)} is more than all bytes, {format_size(whole)}")
    powers = [2**power for power in range(20, math.ceil(math.log2(whole)))]
    sizes = [first, *(size for size in powers if size != first), *([whole] if whole != first else [])]
    question = machine if isinstance(machine, Question) else Question(machine)
    model, where = (library or Library()).at(question)
    times = model.times(where, Collective.of(collective), sizes)
    return Buckets(whole, tuple((-(-whole // one.size), one) for one in times))
