"""Files of rules as the tuners of NCCL, RCCL and NCCLX read them.

NCCL and RCCL: rows of NVIDIA/nccl, ext-tuner/example (2.28), which RCCL has taken over: sizes in bytes of the larger of
one rank's buffers. NCCLX: rows of meta-pytorch/torchcomms, comms/ncclx/meta/tuner, with sizes by rank as intervals,
read by a tuner that is part of the library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from blinksim.errors import unknown
from blinksim.nccl.tuner_files.tuning_rule import DEFAULT, MOST_BYTES, TuningRule
from blinksim.textio.exported import Exported
from blinksim.textio.text_table import count

DialectName = Literal["nccl", "rccl", "ncclx"]
PLUGIN = "libnccl-tuner-blinksim.so"
"""What the plugin is called here."""


@dataclass(frozen=True, slots=True)
class _Dialect:
    head: str
    row: Callable[[TuningRule], str | None]
    variable: str
    proof: str
    plugin: bool
    note: str


def _nccl_row(rule: TuningRule) -> str:
    numbers = (rule.channels, rule.nodes, rule.ranks, DEFAULT, DEFAULT)
    return ",".join(map(str, (rule.collective, rule.least, rule.most, rule.algorithm, rule.protocol, *numbers)))


def _ncclx_row(rule: TuningRule) -> str | None:
    """None for a range that holds no multiple of a byte per rank."""
    ranks = max(rule.ranks, 1)
    least = -(-rule.least // ranks)
    most = rule.most // ranks
    if least > most:
        return None
    sizes = f"[{least},)" if rule.most == MOST_BYTES else f"[{least},{most}]"
    known = DEFAULT not in (rule.nodes, rule.ranks)
    where = (str(rule.nodes), str(rule.ranks // rule.nodes)) if known else ("*", "*")
    return ",".join((rule.collective, sizes, rule.algorithm, rule.protocol, str(rule.channels), *where, "-1", "-1"))


_NCCL = _Dialect(
    "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff",
    _nccl_row,
    "NCCL_TUNER_CONFIG_FILE",
    "TUNER/blinksim: {file}:",
    True,
    "NCCL's own example plugin reads the file too, but gives one channel to calls without a row",
)
_DIALECTS = {
    "nccl": _NCCL,
    "rccl": _NCCL,
    "ncclx": _Dialect(
        "collective,bytesPerRank,algorithm,protocol,channels,nNodes,nLocalRanks,numPipeOps,regBuff",
        _ncclx_row,
        "NCCLX_TUNER_CONFIG_FILE",
        "NCCLX TUNER: using built-in tuner",
        False,
        "NCCLX reads the file itself; leave NCCL_TUNER_PLUGIN unset",
    ),
}


def export(
    rules: Sequence[TuningRule], dialect: DialectName, *, head: Sequence[str] = (), least_channels: int | None = None
) -> Exported:
    """The rules as one file of a dialect, with the variables that put it in force.

    head: lines of comment. least_channels: NCCL_MIN_NCHANNELS that the rules need. Raises `InputError` for an unknown
    dialect.
    """
    if dialect not in _DIALECTS:
        raise unknown("dialect of tuner files", dialect, _DIALECTS)
    form = _DIALECTS[dialect]
    needs = [f"needs NCCL_MIN_NCHANNELS={least_channels}"] if least_channels else []
    comments = [f"# {line}" for line in (*head, *needs, form.head)]
    rows = [row for rule in rules if (row := form.row(rule)) is not None]
    # Without a slash it would be looked for among the system's libraries.
    environment = {"NCCL_TUNER_PLUGIN": f"./{PLUGIN}"} if form.plugin else {}
    environment[form.variable] = "{file}"
    if least_channels:
        environment["NCCL_MIN_NCHANNELS"] = str(least_channels)
    return Exported(
        {"": "\n".join([*comments, *rows]) + "\n"},
        summary=f"{count(len(rows), 'rule')} for {dialect}",
        facts=tuple(head),
        environment=environment,
        proof=(form.proof,),
        notes=(form.note,),
    )
