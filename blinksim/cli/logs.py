"""What commands about logs share: the option for the collective, and the members that a log comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from blinksim.nccl.logs.log_rows import Run
    from blinksim.question import Question
    from blinksim.topology.graph import Topology


collective_option = click.option(
    "--collective",
    metavar="NAME",
    help="Which test of LOG; its collective, if LOG does not name it.  [default: what LOG says]",
)


def runs_of(log: str, collective: str | None) -> list[Run]:
    """The tests in a log, all of one collective."""
    from blinksim.collective import Collective
    from blinksim.nccl.logs import tests_log

    wanted = Collective.parse(collective).name if collective else ""
    return tests_log.select(tests_log.read(log), wanted)


def part_of(run: Run, question: Question, whole: Topology) -> Topology:
    """The selected part of the machine that a test ran on: as the options say, else as the log says."""
    from blinksim.answers.logs.log_members import check_members, members_of

    if question.members is not None or question.ranks_per_node is not None:
        topology = question.part(whole)
        check_members(run, topology)
        return topology
    members = members_of(run, whole)
    return whole.select(members, question.relay_names(whole, members), question.link_classes(whole))
