"""Messages of the library, as the command line prints them."""

from __future__ import annotations

import click
import pytest

from blinksim.cli.commands import COMMANDS
from blinksim.cli.options import built
from blinksim.cli.terminal import FLAGS, OPTIONS, as_typed


@pytest.mark.parametrize(
    ("message", "printed"),
    [
        # Values: numbers, names, names in quotes.
        ("comes from 2 hosts; add nodes=2", "comes from 2 hosts; add --nodes 2"),
        ("give nodes=2 or ranks_per_node=12", "give --nodes 2 or --ranks-per-node 12"),
        ("links=all together with relays=idle", "--links all together with --relays idle"),
        ("take double_binary or model='alpha-beta'", "take double_binary or --model alpha-beta"),
        ("take algorithm=ring, or fewer ranks", "take --algorithm ring, or fewer ranks"),
        ("leave links=nvlink,pcie out", "leave --links nvlink,pcie out"),
        ("drop two edits= of five", "drop two --edit of five"),
        # Bare names, within a sentence and at its end.
        ("members= and nodes= say it twice", "--members and --nodes say it twice"),
        ("takes nodes=, not relays= or links=", "takes --nodes, not --relays or --links"),
        ("by a larger chunk=.", "by a larger --chunk."),
        ("name it with machine=", "name it with --machine"),
        ("(relays=) or (root=): neither", "(--relays) or (--root): neither"),
        # Flags.
        ("add force=True, or choose another name", "add --force, or choose another name"),
        ("say it with algorithm=ring and alike=True", "say it with --algorithm ring and --alike"),
        ("relays_reduce= says what relays may do", "--relays-reduce says what relays may do"),
        ("leave check=False", "leave check=False"),
        # The user's own words, and what is no option.
        ("'degrade gpu0-gpu3 nodes=1' is no edit", "'degrade gpu0-gpu3 nodes=1' is no edit"),
        ('unknown machine "relays=idle"', 'unknown machine "relays=idle"'),
        ("NCCL's rules; leave links=all out of users' files", "NCCL's rules; leave --links all out of users' files"),
        ("lanes=4 and sub_nodes=2 and --nodes=3", "lanes=4 and sub_nodes=2 and --nodes=3"),
        ("a ratio of 0.5 = one half", "a ratio of 0.5 = one half"),
    ],
)
def test_arguments_are_spelled_as_options(message: str, printed: str) -> None:
    assert as_typed(message) == printed


def test_a_message_that_is_spelled_stays_as_it_is() -> None:
    once = as_typed("add force=True, nodes=2 and members=")
    assert as_typed(once) == once


@pytest.mark.parametrize("name", [name for name, options in COMMANDS.items() if options.run])
def test_every_command_with_answers_can_be_quiet(name: str) -> None:
    flags = {flag for parameter in built(name).params for flag in parameter.opts}
    assert "--json" not in flags or {"-q", "--quiet"} <= flags


def _is_flag(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Option) and parameter.is_flag


def _options() -> dict[str, bool]:
    """Every option of every command, and whether it takes a value somewhere."""
    found: dict[str, bool] = {}
    for command in map(built, COMMANDS):
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                for name in parameter.opts:
                    found[name] = found.get(name, False) or not parameter.is_flag
    return found


def test_every_spelling_is_an_option_of_a_command() -> None:
    takes_value = _options()
    assert [name for name in OPTIONS.values() if not takes_value.get(name)] == []
    # expect has logs behind --check; run, whose messages name the flag, has none.
    flags = {flag for command in map(built, COMMANDS) for one in command.params for flag in one.opts if _is_flag(one)}
    assert [name for name in FLAGS.values() if name not in flags] == []
