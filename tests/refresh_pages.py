"""Writes into the pages what their commands print: ``python tests/refresh_pages.py [PAGE ...]``, from the checkout.

The programs of examples/ are copied into their page anew, and the pictures that they draw beside it.

A block whose output is still as the page says is left alone. Where lines are left out (``…``), as many lines as before
are kept above the first ellipsis, below the last, and between two. Read the difference before you commit it: the
commands decide what a page shows, not whether its text still fits.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from difflib import SequenceMatcher
from itertools import pairwise
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from test_readme import BLOCK, ELLIPSES, FILE, PAGES, ROOT, STATUS, furnish, run_command, same  # noqa: E402


def renewed(expected: list[str], printed: list[str]) -> list[str]:
    """`printed`, shortened as `expected` was: between two ellipses stand the lines that are most like those before.

    All of it where it has too few lines for that.
    """
    gaps = [number for number, line in enumerate(expected) if line.strip() in ELLIPSES]
    if same(expected, printed):
        return expected
    if not gaps:
        return printed
    above, below = gaps[0], len(expected) - 1 - gaps[-1]
    kept, at, end = [*printed[:above], expected[gaps[0]]], above, max(above, len(printed) - below)
    for first, last in pairwise(gaps):
        wanted = expected[first + 1 : last]
        starts = range(at, end - len(wanted) + 1)
        if not starts:
            return printed
        at = max(starts, key=lambda start: sum(map(_alike, wanted, printed[start:])))
        kept += [*printed[at : at + len(wanted)], expected[last]]
        at += len(wanted)
    return [*kept, *printed[end:]]


def _alike(line: str, other: str) -> float:
    return SequenceMatcher(None, line, other, autojunk=False).ratio()


def refresh(page: Path) -> None:
    """Runs the commands of a page in their order and rewrites its console blocks."""
    text = page.read_text(encoding="utf-8")
    patch = pytest.MonkeyPatch()
    patch.delenv("COLUMNS", raising=False)
    for block in [match.group(1) for match in BLOCK.finditer(text)]:
        lines: list[str] = []
        for part in block.removeprefix("$ ").split("\n$ "):
            command, *expected = part.splitlines()
            ended, printed = run_command(shlex.split(command, comments=True), patch)
            status = STATUS.search(command)
            if ended != (int(status.group(1)) if status else 0):
                print(f"{page.name}: $ {command}\nended with status {ended}:\n{printed}", file=sys.stderr)
            lines += [f"$ {command}", *(line.rstrip() for line in renewed(expected, printed.splitlines()))]
        text = text.replace(f"```console\n{block}```", "```console\n" + "\n".join(lines) + "\n```", 1)
    patch.undo()
    page.write_text(text, encoding="utf-8")


def programs_renewed(text: str) -> str:
    """A page with the programs of examples/ that it shows as they are now."""
    for name, shown in FILE.findall(text):
        program = ROOT / "examples" / name
        if program.exists():
            text = text.replace(f'title="{name}"\n{shown}```', f'title="{name}"\n{program.read_text()}```')
    return text


def main() -> None:
    pages = [Path(name).resolve() for name in sys.argv[1:]] or PAGES
    # What the programs of one page register, those of another do not know.
    for page in pages if len(pages) > 1 else ():
        subprocess.run([sys.executable, __file__, str(page)], check=True)
    for page in pages if len(pages) == 1 else ():
        with tempfile.TemporaryDirectory() as folder:
            page.write_text(programs_renewed(page.read_text(encoding="utf-8")), encoding="utf-8")
            furnish(Path(folder), page.read_text(encoding="utf-8"))
            os.chdir(folder)
            refresh(page)
            for picture in Path(folder).glob("*.png"):
                if page.name == "examples.md":
                    shutil.copy(picture, page.parent / "pictures")
            os.chdir(ROOT)


if __name__ == "__main__":
    main()
