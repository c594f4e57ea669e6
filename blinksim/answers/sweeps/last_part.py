"""The machine of the case that is being worked on: the algorithms of a case all run on the same."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from blinksim.collective import Collective
from blinksim.question import Question
from blinksim.topology.graph import Topology


@dataclass(frozen=True)
class KeptQuestion(Question):
    """A question about a topology whose part is put together once for all that ask the same one after another."""

    @classmethod
    def like(cls, question: Question) -> KeptQuestion:
        """The same question."""
        return cls(**{field.name: getattr(question, field.name) for field in fields(question)})

    def part(self, whole: Topology | None = None, collective: Collective | None = None) -> Topology:
        """As `Question.part`; equal questions get the very same topology, with all that is known of it."""
        if whole is not None or not isinstance(self.machine, Topology):
            return super().part(whole, collective)
        asked = replace(self, collective=collective or self.collective)
        if not _last or _last[0][0] != asked or _facts(_last[0][0].machine) != _facts(self.machine):
            _last[:] = [(asked, super().part(None, collective))]
        return _last[0][1]


# The last question of this process, and its part.
_last: list[tuple[KeptQuestion, Topology]] = []


def forget() -> None:
    """Drops what is kept, which may be a cluster of hundreds of thousands of links."""
    _last.clear()


def _facts(machine: object) -> tuple[object, ...]:
    """What equal topologies may differ in."""
    if not isinstance(machine, Topology):
        return ()
    return machine.loaded_from, machine.edits, machine.execution, machine.nccl_rates
