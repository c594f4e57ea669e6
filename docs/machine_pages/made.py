"""Pages and pictures of machines, kept in a folder until something that they come from changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import curves as curves_
import facts as facts_
import page as page_
from facts import Facts

import blinksim as bs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "build" / "machine-pages"
# What an answer comes from: code, cost models, and the tables of published measurements.
_SOURCES = ("blinksim/**/*.py", "docs/machine_pages/[fcm]*.py", "models/**/*.yaml", "models/**/*.csv")


def all_facts(names: Sequence[str], *, jobs: int = 2) -> Iterator[Facts]:
    """What the pages of these machines say, in this order; their pictures are beside them in `KEPT`."""
    KEPT.mkdir(parents=True, exist_ok=True)
    code = _digest(path for pattern in _SOURCES for path in sorted(ROOT.glob(pattern)))
    late = [name for name in names if not _kept(name, code).is_file()]
    if late:
        with ProcessPoolExecutor(max_workers=jobs) as pool:
            list(pool.map(_make, late, [code] * len(late)))
    for name in names:
        yield json.loads(_kept(name, code).read_text(encoding="utf-8"))


def picture(name: str, what: str) -> bytes | None:
    """The picture ``links`` or ``curves`` of a machine, once its facts are made; None if its links are too many."""
    path = KEPT / f"{name}-{what}.svg"
    return path.read_bytes() if path.is_file() else None


def _make(name: str, code: str) -> None:
    found = facts_.facts(name)
    for what, drawn in (("links", facts_.drawn(name)), ("curves", curves_.curves(found))):
        path = KEPT / f"{name}-{what}.svg"
        path.unlink(missing_ok=True)
        if drawn is not None:
            path.write_bytes(as_svg(drawn))
    for old in KEPT.glob(f"{name}.*.json"):
        old.unlink()
    _kept(name, code).write_text(json.dumps(found), encoding="utf-8")


def as_svg(drawn: Figure) -> bytes:
    """A figure as SVG whose words are text, which is lighter than shapes."""
    from io import BytesIO

    from matplotlib import rc_context

    picture = BytesIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "blinksim"}):
        drawn.savefig(picture, format="svg", bbox_inches="tight", pad_inches=0.12, metadata={"Date": None})
    return picture.getvalue()


def markdown(found: Facts) -> str:
    """The page of a machine whose pictures are made."""
    return page_.page(found, drawn=picture(found["name"], "links") is not None)


def index(machines: Sequence[Facts]) -> str:
    """The table of all machines."""
    return page_.index(machines)


def names() -> list[str]:
    """The machines of the catalogue."""
    return list(bs.catalogue())


def _kept(name: str, code: str) -> Path:
    return KEPT / f"{name}.{code[:12]}{_digest(iter([ROOT / 'topologies' / f'{name}.yaml']))[:12]}.json"


def _digest(paths: Iterator[Path]) -> str:
    found = hashlib.sha256()
    for path in paths:
        found.update(path.read_bytes())
    return found.hexdigest()
