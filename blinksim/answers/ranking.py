"""One collective at one size by every algorithm that a model can time: what ``blinksim project`` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blinksim.answers.project import contest
from blinksim.results import Result
from blinksim.textio.text_table import table
from blinksim.timing.projection_result import Projection, labelled
from blinksim.timing.timing_model import ScheduleModel, TimingModel
from blinksim.units import format_rate, format_time

if TYPE_CHECKING:
    from blinksim.collective import Collective
    from blinksim.question import Question

BEST, ALL = "best", "all"


@dataclass(frozen=True, repr=False)
class Ranking(Result):
    """Projections, quickest first.

    asked: ``best``, ``all``, or the names of algorithms. chosen: what a library would choose among its algorithms, None
    if the quickest counts. refused: the reason, by algorithm, for those that cannot run. edits: of the machine.
    """

    projections: tuple[Projection, ...]
    asked: str
    chosen: Projection | None = None
    refused: Mapping[str, str] | None = None
    edits: tuple[str, ...] = ()

    @property
    def best(self) -> Projection:
        """What is chosen, or the quickest."""
        return self.chosen or self.projections[0]

    @property
    def shown(self) -> tuple[Projection, ...]:
        """All of them if all were asked for, else the quickest."""
        return self.projections if self.asked == ALL else self.projections[:1]

    def rows(self) -> list[dict[str, Any]]:
        """One row per projection that was asked for."""
        return [projection.row() for projection in self.shown]

    def to_dict(self) -> dict[str, Any]:
        """The keys of the best projection; ``rows`` and ``refused`` where several were asked for."""
        answer = self.best.to_dict()
        if self.asked == ALL if self.chosen else self.asked != BEST and len(self.projections) > 1:
            answer["rows"] = [projection.row() for projection in self.projections]
            answer |= {} if self.refused is None else {"refused": dict(self.refused)}
        return answer

    def sentence(self) -> str:
        """The answer in one line."""
        return self.best.sentence()

    def text(self) -> str:
        """The sentence, the ranking if it was asked for, the terms of the quickest, and what else is known of it."""
        rivals = len(self.projections) if self.asked == BEST else None
        facts = labelled(self.best.facts(self.edits, rivals))
        return "\n".join((self.sentence(), "", *self._ranked(), self.best.terms_table(), "", *facts))

    def _ranked(self) -> Iterator[str]:
        if self.asked != ALL:
            return
        header = ["algorithm", "time", "algbw", "busbw", "bottleneck"]
        cells = [
            [p.algorithm, format_time(p.time_s), format_rate(p.algbw), format_rate(p.busbw), p.bottleneck]
            for p in self.projections
        ]
        width = 5 if self.chosen is None else 4
        yield table(header[:width], [line[:width] for line in cells])
        for name, reason in (self.refused or {}).items():
            yield f"  {reason if reason.startswith(name) else f'{name}: {reason}'}"
        yield ""

    def __repr__(self) -> str:
        return f"<Ranking {self.sentence()}; {len(self.projections)} projections>"


def rank(
    question: Question,
    collective: Collective,
    size: int,
    model: TimingModel,
    algorithms: str = BEST,
    report: Callable[[str], None] | None = None,
) -> Ranking:
    """The ranking of `algorithms` by `model` for a question.

    size: bytes. algorithms: ``best`` or ``all`` of those that the model times, or names separated by commas. report:
    called with a progress message. Raises as `blinksim.answers.project.contest` and the model do.
    """
    names = None if algorithms in (BEST, ALL) else algorithms.split(",")
    timing, topology = model.at(question)
    if isinstance(timing, ScheduleModel):
        entrants = contest(topology, collective, names, report, timing)
        if report is not None:
            report(f"timing by {timing.name}")
        found = tuple(entrants.projections(size))
        return Ranking(found, algorithms, refused=entrants.refused, edits=question.edits)
    asked = timing.best if algorithms == BEST else names
    found = tuple(timing.times(topology, collective, [size], asked, report))
    chosen = None
    if timing.best is not None and (names is None or tuple(names) == timing.best):
        chosen = timing.times(topology, collective, [size], timing.best)[0]
    return Ranking(found, algorithms, chosen, edits=question.edits)
