"""The names that docs/promises.md promises, of commands, of answers in JSON, and in Python.

``python tests/promised.py``, at a release, writes those that there are to tests/data/compatibility/names.json, beside
those that are in it.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import blinksim
from blinksim.cli.commands import COMMANDS
from blinksim.cli.options import built

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "tests" / "data" / "compatibility" / "names.json"
Names = dict[str, dict[str, list[str]]]


def names() -> Names:
    """Options by command, keys that are always there by answer in JSON, and parameters by public function or class."""
    commands = {name: [option for one in built(name).params for option in one.opts] for name in COMMANDS}
    schema = json.loads((ROOT / "docs" / "answer.schema.json").read_text(encoding="utf-8"))
    answers = {"every": schema["required"]}
    for entry in schema["allOf"]:
        answers[entry["if"]["properties"]["command"]["const"]] = entry["then"].get("required", [])
    public = {name: getattr(blinksim, name) for name in blinksim.__all__}
    public |= {f"plot.{name}": getattr(blinksim.plot, name) for name in blinksim.plot.__all__}
    called = {name: inspect.signature(one) for name, one in public.items() if inspect.isroutine(one)}
    python = {name: list(called[name].parameters) if name in called else [] for name in public}
    return {"commands": commands, "answers": answers, "python": python}


def main() -> None:
    kept: Names = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    for kind, table in names().items():
        for name, parts in table.items():
            before = kept.setdefault(kind, {}).get(name, [])
            kept[kind][name] = sorted({*before, *parts})
    lines = [
        f"{json.dumps(kind)}: {{\n" + ",\n".join(_line(*row) for row in sorted(kept[kind].items())) for kind in kept
    ]
    FILE.write_text("{\n" + "\n},\n".join(lines) + "\n}\n}\n", encoding="utf-8")


def _line(name: str, parts: list[str]) -> str:
    return f"{json.dumps(name)}: {json.dumps(parts)}"


if __name__ == "__main__":
    main()
