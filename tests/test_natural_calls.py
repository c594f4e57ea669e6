"""Calls that people write without looking anything up work, and wrong ones are refused in one line."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

import blinksim as bs

MACHINE = Path("topologies/dgx1-v100.yaml")
NATURAL: dict[str, Callable[[], object]] = {
    "compare": lambda: bs.compare("dgx1-v100", "allreduce", ["1MiB"]),
    "simulate": lambda: bs.simulate(ring(), "256KiB"),
    "execute": lambda: bs.execute(ring(), "1MB"),
    "advise": lambda: bs.advise(bs.load("dgx1-v100", rates="nccl"), size="256MiB"),
    "advise in the order of the others": lambda: bs.advise("k2200-ntb", "allreduce", "64MiB"),
    "pareto": lambda: bs.pareto("ring:4@25GB/s", "allgather", sizes="1MiB,64MiB", seconds=1),
    "place": lambda: bs.place("dgx1-v100", 4, "allgather"),
    "contest": lambda: bs.contest("dgx1-v100", "allreduce"),
    "project": lambda: bs.project("dgx1-v100", "allreduce", "256MiB"),
    "project, the algorithm in place": lambda: bs.project("dgx1-v100", "allreduce", "1GiB", "ring"),
    "bound": lambda: bs.bound("dgx1-v100", "allreduce"),
    "select": lambda: bs.load("dgx1-v100").select([0, 1, 2]),
    "select text": lambda: bs.load("dgx1-v100").select("0-3"),
    "select idle": lambda: bs.load("dgx1-v100").select([0, 5], "idle"),
    "float size": lambda: bs.project("dgx1-v100", "allreduce", 1e9),
    "edit": lambda: bs.load("dgx1-v100", edits="without gpu0"),
    "path": lambda: bs.verify(Path("schedules/dgx1-v100-8-allreduce.json")),
    "losses": lambda: bs.losses("dgx1-v100", "broadcast", root=1),
    "synthesize": lambda: bs.synthesize("dgx1-v100", "all_gather", "ring"),
    "sweep": lambda: bs.sweep("dgx1-v100", "allreduce", ["1MiB", 2**21]),
    "sweep of a file": lambda: bs.sweep(MACHINE, "allreduce", ["1MiB"], algorithms=["ring"]),
    "check": lambda: bs.check(MACHINE),
    "rank": lambda: bs.rank(MACHINE, "all-reduce", "1MiB", algorithms="ring,chain"),
    "place over": lambda: bs.place(MACHINE, 2, links="nvlink,pcie"),
    "plot": lambda: bs.plot.topology(MACHINE),
    "models": lambda: bs.across_models(MACHINE, "allreduce", ["1MiB"], ["alpha-beta"], ["ring"]),
    "question": lambda: bs.Question(MACHINE, members="0-3").part(),
    "sizes as text": lambda: bs.compare("dgx1-v100", "allreduce", "1KiB:1MiB:x4", "ring,chain"),
    "sizes of models as text": lambda: bs.across_models(MACHINE, "allreduce", "1MiB,2MiB", algorithms="ring"),
    "one size": lambda: bs.compare("dgx1-v100", "allreduce", 2**20, "ring"),
    "sweep of text": lambda: bs.sweep(MACHINE, "allreduce", "1MiB,2MiB", "edit=none;without gpu7", algorithms="ring"),
    "rank of a list": lambda: bs.rank(MACHINE, "allreduce", "1MiB", algorithms=["ring", "chain"]),
    "nodes as text": lambda: bs.load("hgx-h100", nodes="2"),  # type: ignore[arg-type]
    "root as text": lambda: bs.bound("dgx1-v100", "broadcast", root="3"),  # type: ignore[arg-type]
    "count as text": lambda: bs.place("dgx1-v100", "2"),  # type: ignore[arg-type]
    "simulate a synthesis": lambda: bs.simulate(made(), "1MiB"),
    "execute a synthesis": lambda: bs.execute(made(), "1MiB"),
    "verify a synthesis": lambda: bs.verify(made()),
    "export a synthesis": lambda: bs.export(made(), "msccl-xml"),
    "trees of a synthesis": lambda: bs.plot.trees(made(), most=1),
    "compare with a synthesis": lambda: bs.compare("dgx1-v100", "allgather", "1MiB", ["ring", made()]),
}


def made() -> bs.Synthesis:
    return bs.synthesize("dgx1-v100", "allgather", "ring")


def ring() -> bs.Schedule:
    return made().schedule


@pytest.mark.parametrize("name", NATURAL)
def test_natural_calls_work(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).resolve().parents[1])
    assert NATURAL[name]() is not None


WRONG: dict[str, Callable[[], object]] = {
    "no shape": lambda: bs.load("rng:8"),
    "no machine": lambda: bs.project("dgx1-v1000", "allreduce", 1),
    "a number": lambda: bs.bound(7, "allreduce"),  # type: ignore[arg-type]
    "no collective": lambda: bs.bound("dgx1-v100", "allreduse"),
    "no size": lambda: bs.project("dgx1-v100", "allreduce", "1 MiBi"),
    "half a byte": lambda: bs.project("dgx1-v100", "allreduce", 1.5),
    "no schedule": lambda: bs.verify(7),  # type: ignore[arg-type]
    "simulate": lambda: bs.simulate(ring(), "much"),
    "execute": lambda: bs.execute(ring(), -1),
    "place": lambda: bs.place("dgx1-v100", 4, "gpu"),
    "compare": lambda: bs.compare("dgx1-v100", "allreduce", ["x"]),
    "advise": lambda: bs.advise("dgx1-v1000"),
    "algorithm": lambda: bs.synthesize("dgx1-v100", "allreduce", "rinf"),
    "check": lambda: bs.check(7),  # type: ignore[arg-type]
    "rank": lambda: bs.rank(7, "allreduce", 1),  # type: ignore[arg-type]
    "sweep": lambda: bs.sweep(7, "allreduce"),  # type: ignore[arg-type]
    "question": lambda: bs.Question(7).part(),  # type: ignore[arg-type]
    "load": lambda: bs.load(7),  # type: ignore[arg-type]
    "plot": lambda: bs.plot.topology("dgx1-v1000"),
    "place over": lambda: bs.place("dgx1-v100", 2, links="nvlimk"),
    "root": lambda: bs.bound("dgx1-v100", "allreduce", root=1),
    "root by name": lambda: bs.bound("dgx1-v100", "broadcast", root="gpu3"),  # type: ignore[arg-type]
    "nodes": lambda: bs.load("hgx-h100", nodes="four"),  # type: ignore[arg-type]
    "half a node": lambda: bs.Question("hgx-h100", nodes=1.5).part(),  # type: ignore[arg-type]
    "ranks of a node": lambda: bs.Question("hgx-h100", ranks_per_node="x").part(),  # type: ignore[arg-type]
    "one member": lambda: bs.load("dgx1-v100").select(4),  # type: ignore[arg-type]
    "members without commas": lambda: bs.load("dgx1-v100").select("0 1 2"),
    "a file to simulate": lambda: bs.simulate("ring.json", "1MiB"),  # type: ignore[arg-type]
    "a machine to execute": lambda: bs.execute(bs.load("ring:4"), "1MiB"),  # type: ignore[arg-type]
    "a machine for its trees": lambda: bs.plot.trees(bs.load("ring:4")),  # type: ignore[arg-type]
    "an option that packed lacks": lambda: bs.synthesize("ring:4", "allreduce", edits="without gpu0"),
    "no sizes": lambda: bs.compare("dgx1-v100", "allreduce", []),
    "no sizes to sweep": lambda: bs.sweep("dgx1-v100", "allreduce", []),
    "too many": lambda: bs.bound("ring:4", "allreduce", 0, ()),  # type: ignore[call-arg]
    "no part": lambda: bs.diagnose("log.txt", machine="hgx-h100"),  # type: ignore[call-arg]
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_are_refused_in_a_line(name: str) -> None:
    with pytest.raises(bs.InputError) as refused:
        WRONG[name]()
    assert "\n" not in str(refused.value)
    assert "--" not in str(refused.value)


def test_an_argument_that_is_missing_is_named_beside_those_there_are() -> None:
    said = r"^buckets\(\): missing a required argument: 'bucket'; it takes machine, collective, total, bucket, library$"
    with pytest.raises(bs.InputError, match=said):
        bs.buckets("hgx-h100", "allreduce", "1GiB")  # type: ignore[call-arg]


def test_text_means_what_a_list_means(tmp_path: Path) -> None:
    listed = bs.compare("dgx1-v100", "allreduce", [2**10, 2**12, 2**13], ["ring", "chain"])
    assert bs.compare("dgx1-v100", "allreduce", "1KiB:8KiB:x4", "ring, chain").rows() == listed.rows()
    assert bs.bound("dgx1-v100", "broadcast", root="3").rate == bs.bound("dgx1-v100", "broadcast", root=3).rate  # type: ignore[arg-type]
    assert bs.load("hgx-h100", nodes="2") == bs.load("hgx-h100", nodes=2)  # type: ignore[arg-type]
    bs.write(made(), tmp_path / "ring.json")
    assert bs.read_schedule(tmp_path / "ring.json").sends == made().schedule.sends


def test_a_message_about_members_shows_the_commas() -> None:
    with pytest.raises(bs.InputError, match="like 0,1,2"):
        bs.load("dgx1-v100").select("0 1 2")


def test_public_names_can_be_sent_to_other_processes() -> None:
    names = [name for name in bs.__all__ if callable(getattr(bs, name))]
    assert {"project", "bound", "Question"} <= {*names}
    assert [name for name in names if pickle.loads(pickle.dumps(getattr(bs, name))) is not getattr(bs, name)] == []
