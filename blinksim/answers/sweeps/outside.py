"""What of a sweep is not part of the package, code and schedules: workers and later runs must find the same."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from blinksim import plugins
from blinksim.algorithms.registry import algorithm
from blinksim.errors import InputError
from blinksim.formats.schedule_files import names_a_file
from blinksim.formats.schedule_json import MOST_BYTES
from blinksim.formats.shipped.ready_schedules import located
from blinksim.textio.text_files import read_bytes
from blinksim.timing import model_registry as models


def digests(names: Iterable[str], model: str, *, alone: bool) -> list[str]:
    """The digests of the files that hold these algorithms and this model, as far as they are not the package's.

    alone: no other process and no later run takes part; otherwise what this process alone knows is an `InputError`.
    """
    found = []
    for name in names:
        if names_a_file(name):
            found.append(sha256(read_bytes(located(name), MOST_BYTES, "schedule")).hexdigest())
            continue
        entry = None if name == "best" or models.chooser(name) else algorithm(name)
        if entry is not None and entry.fill is not None:
            found.append(_digest(entry.home, f"algorithm {name!r}", alone))
    in_file = plugins.split(model, models.YAML)
    if in_file is not None:
        found.append(plugins.digest(in_file[0]))
    registered = models.MODELS.get(models.known_as(model))
    if registered is not None and not isinstance(registered.home, str):
        found.append(_digest(registered.file, f"timing model {model!r}", alone))
    return found


def _digest(home: str, what: str, alone: bool) -> str:
    if home:
        return plugins.digest(Path(home))
    if not alone:
        raise InputError(
            f"{what} is registered in this process only; workers and journals need it in a file, named like 'pairs.py'"
        )
    return ""
