"""A hook of MkDocs: the pages of the machines join those of docs/, and their table goes into docs/machines/index.md."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

# For the processes that make the pages, too.
sys.path.insert(0, str(Path(__file__).parent))

import made

PLACE = "<!-- the table of machines -->"
# Only these, for a quick look: MACHINE_PAGES=p5.48xlarge,dgx-a100 mkdocs serve
_SOME = "MACHINE_PAGES"
_table = ""


def on_files(files: Any, config: Any) -> Any:
    """Adds a page and its pictures for every machine of the catalogue."""
    from mkdocs.structure.files import File

    global _table
    some = os.environ.get(_SOME)
    found = list(made.all_facts(some.split(",") if some else made.names()))
    for one in found:
        name = one["name"]
        files.append(File.generated(config, f"machines/{name}.md", content=made.markdown(one)))
        for what in ("links", "curves"):
            drawn = made.picture(name, what)
            if drawn is not None:
                files.append(File.generated(config, f"machines/{name}-{what}.svg", content=drawn))
    _table = made.index(found)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Puts the table where the index wants it."""
    return markdown.replace(PLACE, _table) if page.file.src_uri == "machines/index.md" else markdown
