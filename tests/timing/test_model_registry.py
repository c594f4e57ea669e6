"""The registry of timing models: every model is found, says what it takes, and answers the same questions alike."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from h200_rates import H200

import blinksim as bs
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.machines import Question
from blinksim.results import Term
from blinksim.schedule.model import Schedule
from blinksim.timing import model_registry as models
from blinksim.timing.nccl_model import NcclTuner
from blinksim.timing.timing_model import Breakdown, ScheduleModel, TimingModel
from blinksim.topology.graph import Topology

ALLREDUCE = Collective("allreduce")
DGX1 = bs.load("dgx1-v100", rates="nccl")


@pytest.mark.parametrize("name", models.names())
def test_every_model_knows_its_name_and_times_what_it_says(name: str) -> None:
    model = models.model(name)
    assert model.name == name
    asked = Question("aurora", nodes=2) if name.startswith("aurora") else Question("dgx1-v100")
    asked = Question(replace(bs.load("hgx-h200"), execution=H200)) if name.startswith("execution") else asked
    timing, topology = model.at(asked)
    own = timing.algorithms(topology, ALLREDUCE)
    assert own
    found = timing.times(topology, ALLREDUCE, [2**24, 2**28], own[:1])
    assert [projection.size for projection in found] == [2**24, 2**28]
    for projection in found:
        ranks = len(projection.members)
        assert projection.model == (name if name != "auto" else "alpha-beta")
        assert projection.time_s == pytest.approx(sum(term.time_s for term in projection.terms))
        assert projection.busbw == pytest.approx(projection.size / projection.time_s * 2 * (ranks - 1) / ranks)


def test_the_quickest_comes_first_at_every_size() -> None:
    found = models.model("alpha-beta").times(DGX1, ALLREDUCE, [2**10, 2**28])
    small, large = found[: len(found) // 2], found[len(found) // 2 :]
    assert {p.algorithm for p in small} == {p.algorithm for p in large}
    for part, size in ((small, 2**10), (large, 2**28)):
        assert {p.size for p in part} == {size}
        assert [p.time_s for p in part] == sorted(p.time_s for p in part)
    bound = bs.bound(DGX1, "allreduce").rate
    assert all(p.algbw < bound for p in found)


def test_nccl_is_asked_by_names_of_the_registry() -> None:
    model = models.model("nccl-tuner")
    every = model.times(DGX1, ALLREDUCE, [2**28])
    by_name = {name: model.times(DGX1, ALLREDUCE, [2**28], [name])[0] for name in ("ring", "double_binary", "nccl")}
    rings = [p.time_s for p in every if p.algorithm.startswith("ring/")]
    trees = [p.time_s for p in every if p.algorithm.startswith("tree/")]
    assert by_name["ring"].time_s == min(rings)
    assert by_name["double_binary"].time_s == min(trees)
    assert by_name["nccl"].time_s == min(p.time_s for p in every)
    assert bs.project(DGX1, "allreduce", 2**28, algorithm="nccl").time_s == by_name["nccl"].time_s
    with pytest.raises(InfeasibleError, match="no chain here"):
        model.times(DGX1, ALLREDUCE, [2**28], ["chain"])


@pytest.mark.slow
def test_a_thousand_nodes_are_searched_as_one() -> None:
    timing, topology = models.model("nccl-tuner").at(Question("hgx-h100", nodes=1000, rates="nccl"))
    assert isinstance(timing, NcclTuner)
    assert (topology.nodes, timing.nodes) == (1, 1000)
    assert len(timing.times(topology, ALLREDUCE, [2**28], ["nccl"])[0].members) == 8000


def test_what_a_model_does_not_take_is_refused() -> None:
    with pytest.raises(InputError, match=r"unknown model 'alpha-bet'.*alpha-beta"):
        models.model("alpha-bet")
    with pytest.raises(InputError, match="takes no gamma"):
        models.model("projection", gamma=1e-12)
    with pytest.raises(InputError, match="model of schedules"):
        models.schedule_model("nccl-tuner")
    # A preset is no unknown name: what it is, and who takes it.
    for taken in (lambda: bs.compare("aurora", "allreduce", ["1GB"], model="aurora-projection"),
                  lambda: models.check("aurora-projection", models.schedule_models())):  # fmt: skip
        with pytest.raises(InputError, match=r"algorithm of its own.*alpha-beta.*project or blinksim sweep") as caught:
            taken()
        assert "unknown" not in str(caught.value)
    with pytest.raises(InputError, match="algorithm of its own"):
        bs.project("dgx1-v100", "allreduce", 2**20, model="projection", algorithm="ring")
    with pytest.raises(InputError, match="not members="):
        models.model("projection").check(Question("dgx1-v100", members="0,1"))
    with pytest.raises(InputError, match="does not relay"):
        models.model("nccl-tuner").check(Question("dgx1-v100", relays="idle"))
    assert models.model("projection:aurora-projection").name == "aurora-projection"


class Flat(ScheduleModel):
    """One second per send: a model that a test can check by hand."""

    name = "flat"

    def breakdown(self, schedule: Schedule, size: int, gamma: float) -> Breakdown:
        return Breakdown((Term("sends", float(schedule.sends)),), "sends")


class Fixed(TimingModel):
    """A model without schedules."""

    name = "fixed"

    def at(self, question: Question) -> tuple[Fixed, Topology]:
        return self, question.whole()

    def algorithms(self, topology: Topology, collective: Collective) -> tuple[str, ...]:
        return ("magic",)

    def times(
        self, topology: Topology, collective: Collective, sizes: Iterable[int], algorithms: Sequence[str] | None = None
    ) -> list[bs.Projection]:
        return models.model("alpha-beta").times(topology, collective, sizes, ["ring"])


DROPPED = """
from blinksim.results import Term
from blinksim.timing.timing_model import Breakdown, ScheduleModel

ENTRIES = ({"name": "dropped", "class": "Dropped", "schedules": True},)


class Dropped(ScheduleModel):
    name = "dropped"

    def breakdown(self, schedule, size, gamma):
        return Breakdown((Term("steps", 1e-3 * schedule.steps),), "the clock")
"""


def test_a_new_model_is_one_file_in_the_package(tmp_path: Path) -> None:
    (tmp_path / "dropped_model.py").write_text(DROPPED, encoding="utf-8")
    program = (
        f"import blinksim.timing as timing; timing.__path__.append({str(tmp_path)!r})\n"
        "import blinksim as bs\n"
        "from blinksim.timing import model_registry as models\n"
        "print(bs.project('ring:4', 'allreduce', '1MiB', algorithm='ring', model='dropped').time_s)\n"
        "print(bs.project('ring:4', 'allreduce', '1MiB', algorithm='ring', model=models.model('dropped')).model)\n"
        "print(*models.schedule_models())\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert ran.stdout.split() == ["0.006", "dropped", *models.schedule_models(), "dropped"]


def test_a_new_model_needs_a_class_and_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, made, schedules in (("flat", "Flat", True), ("fixed", "Fixed", False)):
        entry = models.Entry(name, f"{__name__}:{made}", schedules=schedules)
        monkeypatch.setitem(models.MODELS, name, entry)
    best = bs.project(DGX1, "allreduce", 2**20, model="flat")
    # Every rank but the root sends up once and receives once: 2 (n - 1) sends are the fewest of an allreduce.
    assert best.time_s == 2 * (DGX1.ranks - 1)
    compared = bs.compare(DGX1, "allreduce", [2**20], ["ring", "chain"], model="flat")
    assert {row["algorithm"]: row["time_s"] for row in compared.rows()}["chain"] == 2 * (DGX1.ranks - 1)
    assert bs.project(DGX1, "allreduce", 2**20, model="fixed", algorithm="magic").algorithm == "ring"
