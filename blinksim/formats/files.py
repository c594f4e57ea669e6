"""Writing what blinksim reads again, whatever it is."""

from __future__ import annotations

import os

from blinksim.errors import InputError
from blinksim.formats import machine_yaml
from blinksim.formats.schedule_json import write_schedule
from blinksim.schedule.model import Schedule
from blinksim.textio.text_files import write_text
from blinksim.topology.graph import Topology


def write(thing: Schedule | Topology, path: str | os.PathLike[str], force: bool = False) -> None:
    """Writes a schedule (.json, .json.gz) or a machine (.yaml) to a file.

    Raises `InputError` for an ending that does not fit, an existing file without `force`, and anything else.
    """
    name = os.fspath(path)
    if isinstance(thing, Schedule):
        if not name.endswith((".json", ".json.gz")):
            raise InputError(f"{name}: a schedule file ends in .json or .json.gz")
        write_schedule(thing, path, force)
    elif isinstance(thing, Topology):
        if not name.endswith((".yaml", ".yml")):
            raise InputError(f"{name}: a machine file ends in .yaml")
        write_text(path, machine_yaml.write(thing), force)
    else:
        raise InputError(f"a {type(thing).__name__} has no file format; schedules and machines have")
