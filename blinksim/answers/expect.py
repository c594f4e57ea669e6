"""What a healthy machine should reach: busbw by collective and size, with floors and ceilings.

Times, intervals and where they come from are those of `blinksim.project`, ceilings its least times.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from statistics import fmean
from typing import Any

from blinksim.collective import Collective, CollectiveLike
from blinksim.errors import InputError
from blinksim.machines import MachineLike, Question
from blinksim.nccl.tests_log import UNSAID, Launch
from blinksim.results import Result, keyed, table
from blinksim.textio import yaml_nodes
from blinksim.timing.library_model import MOST_GPUS_A_NODE, SHARE, Library
from blinksim.timing.measured.public_tables import GRAPH, LAUNCHED, STREAM
from blinksim.timing.projection_result import Projection, guesses, labelled
from blinksim.units import Sizes, format_size, sizes_of

COLLECTIVES = "allreduce", "allgather", "reducescatter", "alltoall"
SIZES = "1KiB:1GiB:x32"
FALSE_ALARMS = 0.1
"""The share of healthy runs below a floor: those above the interval of times that holds 8 in 10."""
# nccl-tests fails a run whose average busbw is less than this share of NCCL_TESTS_MIN_BW (src/common.cu).
_TESTS_ALLOW = 0.9
VISIBLE = {"NCCL": "CUDA_VISIBLE_DEVICES", "RCCL": "HIP_VISIBLE_DEVICES"}
PROGRAMS = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter"}


@dataclass(frozen=True, repr=False)
class Expectations(Result):
    """What the library of a machine reaches if nothing is wrong.

    Attributes
    ----------
    takes : tuple of Projection
        What the library takes, by collective and size.

    Examples
    --------
    >>> import blinksim as bs
    >>> row = bs.expect("hgx-h100", ["allreduce"], "1GiB").rows()[0]
    >>> row["floor_busbw_GBps"] < row["expected_busbw_GBps"] < row["ceiling_busbw_GBps"]
    True
    """

    takes: tuple[Projection, ...]

    def rows(self) -> list[dict[str, Any]]:
        """One row for each collective and size; a run slower than ``interval_high_s`` is below the floor."""
        rows = []
        for one in self.takes:
            assert one.least is not None
            moved, of = one.busbw_GBps * one.time_s, one.details
            ends = {"floor": of["interval_high_s"], "high": of["interval_low_s"], "ceiling": one.least.time_s}
            rates = {f"{end}_busbw_GBps": moved / time_s for end, time_s in ends.items()}
            rows.append(keyed(one, "@Expectations.rows", **rates))
        return rows

    def to_dict(self) -> dict[str, Any]:
        """The keys that ``--json`` prints."""
        first = self.takes[0]
        return keyed(first, "@Expectations", ranks=len(first.members), false_alarms=FALSE_ALARMS, rows=self.rows())

    @property
    def set_up(self) -> str:
        """How calls are launched, as `blinksim.project` takes it; empty where no time depends on it."""
        return next((one.details["set_up"] for one in self.takes if "set_up" in one.details), "")

    def sentence(self) -> str:
        """The answer in one line: of what, how it is launched, and how sure floors are."""
        first, alarms = self.takes[0], f"1 in {1 / FALSE_ALARMS:.0f} healthy runs is below a floor; bounds are in algbw"
        launched = f" launched {LAUNCHED[self.set_up]}" if self.set_up else ""
        return f"{first.taking_part}: busbw in GB/s with {first.details['library']}{launched}; {alarms}"

    def text(self) -> str:
        """The table, where its figures come from, and the bounds."""
        rows, bounds = list[list[str]](), dict[str, str]()
        origins, labels = defaultdict[tuple[str, str], list[str]](list), dict[tuple[str, str], str]()
        for row in self.rows():
            name, figures = row["collective"], ("expected", "floor", "high", "ceiling")
            expected, floor, high, ceiling = (f"{row[f'{figure}_busbw_GBps']:.4g}" for figure in figures)
            # Where several sources are of one kind, they are numbered.
            basis, same = row["basis"], 1 + sum(other == row["basis"] for other, _ in labels)
            # What another run took at a size is beside its time, not in it.
            source, _, run = row["origin"].rpartition("; ")
            source = source if " took " in run and " for " in run else row["origin"]
            label = labels.setdefault((basis, source), f"{basis} {same}" if same > 1 else basis)
            rows.append([name, format_size(row["size_bytes"]), expected, floor, f"{floor} to {high}", ceiling, label])
            bounds[f"bound: {name}"] = row["bound_words"] + guesses(self.takes[0].details["bound_rates"])
            origins[label, source] += [name]
        grid = table(("collective", "size", "expected", "floor", f"{SHARE} runs", "ceiling", "from"), rows, left=(0, 6))
        notes = [(label, f"{origin} ({', '.join(dict.fromkeys(of))})") for (label, origin), of in origins.items()]
        return "\n".join((self.sentence(), "", grid, "", *labelled([*notes, *bounds.items()], 20)))

    def prometheus(self) -> str:
        """Recording rules of Prometheus: a constant for each figure, in bytes/s, with labels."""
        rules, first = [], self.takes[0]
        about = {"machine": first.machine, "gpus": str(len(first.members)), "nodes": str(first.details["nodes"])}
        for row in self.rows():
            labels = about | {"collective": row["collective"], "size_bytes": str(row["size_bytes"])}
            for figure in ("expected", "floor", "ceiling"):
                value = f"vector({row[f'{figure}_busbw_GBps'] * 1e9:.6g})"
                rules.append({"record": f"blinksim_{figure}_busbw_bytes_per_second", "expr": value, "labels": labels})
        block = "".join(f"    {line}\n" for line in yaml_nodes.dump({"rules": rules}).splitlines())
        return f"groups:\n  - name: blinksim\n{block}"

    def nccl_tests(self, launch: Launch = UNSAID, **more: str) -> str:
        """Commands of nccl-tests by collective, which fail where the average busbw is below that of floors.

        launch: how they are started; with no options, as the floors are launched (`set_up`): by one process,
        with a graph or without, or by one a GPU, as on several nodes. more: environment variables besides
        those, such as ``NCCL_DEBUG="INFO"``.

        Raises `InputError` for sizes that are no range, members that differ by node, and other libraries.
        """
        first, sizes = self.takes[0], list(dict.fromkeys(one.size for one in self.takes))
        (factor, rest), *others = {divmod(after, before) for before, after in pairwise(sizes)} or {(2, 0)}
        if others or rest:
            raise InputError("nccl-tests takes sizes that grow by one whole factor, such as 1KiB:1GiB:x32")
        nodes, library = first.details["nodes"], first.details["library"]
        each = len(first.members) // nodes
        # The numbers of the GPUs, which names end with; on every node they must be the same.
        numbers = [re.findall("[0-9]+", name)[-1] for name in first.members]
        if library not in VISIBLE or each > MOST_GPUS_A_NODE or numbers != numbers[:each] * nodes:
            where = f"on the same GPUs of every host, at most {MOST_GPUS_A_NODE}"
            raise InputError(f"nccl-tests runs NCCL or RCCL, {where}; these are {each} of {library} a node")
        roots = {one.collective.name: one.collective.root for one in self.takes}
        alone = 1 if nodes > 1 or self.set_up == STREAM else each
        options = f"-g {alone}" + " -G 1" * (self.set_up == GRAPH)
        started = launch if launch.options else launch._replace(options=options, each=alone)
        lines, figures = "", [(row["collective"], row["floor_busbw_GBps"]) for row in self.rows()]
        for name, floors in groupby(figures, itemgetter(0)):
            least = fmean(floor for _, floor in floors) / _TESTS_ALLOW
            settings = {VISIBLE[library]: ",".join(numbers[:each]), **more, "NCCL_TESTS_MIN_BW": f"{least:.4g}"}
            program = f"{PROGRAMS.get(name, name)}_perf -b {sizes[0]} -e {sizes[-1]} -f {factor}"
            program += f" -r {roots[name]}" if roots[name] else ""
            lines += f"{started.command(program, each * nodes, nodes, settings)}\n"
        return lines


def expect(
    machine: Question | MachineLike,
    collectives: Iterable[CollectiveLike] | str = COLLECTIVES,
    sizes: Sizes = SIZES,
    *,
    nodes: int = 1,
    library: Library | None = None,
) -> Expectations:
    """What the library of a machine reaches if nothing is wrong, and below which busbw something is.

    Parameters
    ----------
    machine : Question, str, path or Topology
        As for `project`; of a whole machine the default members take part.
    collectives : iterable of str or Collective, or text such as ``allreduce,alltoall``
        Such as ``["allreduce"]``.
    sizes : iterable of int or str, or str
        As for `compare`.
    nodes : int
        Nodes of a machine that is no question.
    library : Library, optional
        The version of NCCL, and whether switches may add.

    Returns
    -------
    Expectations
        The bus bandwidths by collective and size, with floors, ceilings, and where they come from.

    Raises
    ------
    InputError, InfeasibleError
        As `project` raises them.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.expect("hgx-h100", sizes="1MiB,1GiB", nodes=4)
    >>> len(found.rows())
    8
    """
    question = machine if isinstance(machine, Question) else Question(machine, nodes=nodes)
    named = collectives.split(",") if isinstance(collectives, str) else collectives
    wanted, listed = [Collective.of(one) for one in named], sizes_of(sizes)
    if not wanted:
        raise InputError("no collectives given; name them like ['allreduce']")
    model, where = (library or Library()).at(question)
    return Expectations(tuple(one for each in wanted for one in model.times(where, each, listed)))
