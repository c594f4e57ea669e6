"""The page of a machine and the index, as Markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from itertools import groupby

from facts import Facts

from blinksim.units import format_size, format_time

_SHOWN = {2**power for power in (10, 16, 20, 24, 28, 30, 33)}
NUMBER = ' class="number"'
_SOURCE = re.compile(r"^(github\.com/\S+|docs\.[\w.]+/\S+)$")


def page(found: Facts, *, drawn: bool) -> str:
    """The page of one machine. drawn: its links are in ``NAME-links.svg``; the curves are in ``NAME-curves.svg``."""
    name = found["name"]
    parts = [
        _head(found),
        _picture(name, "links", f"The GPUs and links of {found['title']}") if drawn else "",
        _bounds(found),
        _clusters(found),
        _losses(found),
        _choices(found),
        _times(found),
        _choice_of_library(found),
        _measured(found),
        _sources(found),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(found: Facts) -> str:
    also = f" People also call it {_listed([f'`{one}`' for one in found['also']])}." if found["also"] else ""
    gpus = f"{found['gpus']} × {found['model']}" if found["model"] else f"{found['gpus']} GPUs"
    made = f"{found['maker']}, {found['year']}" if found["year"] else found["maker"]
    return (
        f"# {found['title']}\n\n"
        f"`{found['name']}` in commands; {made}; {gpus}.{also} [All machines](index.md).\n\n"
        f"```text\nblinksim project {found['name']} allreduce 1GiB{' --nodes 2' if found['nodes'] > 1 else ''}\n```"
    )


def _whose(found: Facts) -> str:
    return "one node" if found["nodes"] == 1 else f"{found['nodes']} nodes"


def _bounds(found: Facts) -> str:
    adds = any(row["in_network"] for row in found["bounds"])
    head = ["collective", "at most, GB/s", "busbw", *(["where switches add"] if adds else []), "because"]
    rows = [
        [
            row["collective"],
            f"{row['algbw']:.4g}" + ("" if row["exact"] else " (not known to be reached)"),
            f"{row['busbw']:.4g}",
            *([f"{row['in_network']:.4g}" if row["in_network"] else "the same"] if adds else []),
            row["words"],
        ]
        for row in found["bounds"]
    ]
    note = (
        f"Size over time (algbw) that no schedule exceeds, on all GPUs of {_whose(found)} at nominal rates"
        + ("; the column where switches add is for switches that multicast and reduce" if adds else "")
        + "."
    )
    return f"## How fast can it be, at best?\n\n{note}\n\n{_table(head, rows, numbers=(1, 2) + ((3,) if adds else ()))}"


def _clusters(found: Facts) -> str:
    if not found["clusters"]:
        return ""
    names = [key for key in found["clusters"][0] if key not in ("nodes", "gpus")]
    rows = [[str(row["nodes"]), str(row["gpus"]), *(f"{row[name]:.4g}" for name in names)] for row in found["clusters"]]
    table = _table(["nodes", "GPUs", *names], rows, numbers=range(2 + len(names)))
    return f"## And on several nodes?\n\nAt most, GB/s algbw, where switches only forward.\n\n{table}"


def _losses(found: Facts) -> str:
    if not found["losses"]:
        return ""
    rows = [
        [
            html.escape(one["what"].removesuffix(" lost").replace(" loses one of ", ", one of its ")),
            str(one["like"]),
            f"{one['after']:.4g}" if one["after"] else "0, a GPU is cut off",
            f"{100 * (one['after'] / one['before'] - 1):+.3g} %" if one["after"] != one["before"] else "nothing",
        ]
        for one in found["losses"]
    ]
    head = ["lost", "links like it", "allreduce at most, GB/s", "change"]
    note = f"All GPUs have {found['losses'][0]['before']:.4g} GB/s at most; after one loss, at most:"
    return f"## What does one lost link cost?\n\n{note}\n\n{_table(head, rows, numbers=(1, 2, 3))}"


def _choices(found: Facts) -> str:
    chosen = found["choices"]
    if chosen["alike"]:
        words = "Any: every GPU has the same links to the same switches, so all choices of as many are as good."
    elif not chosen["rows"]:
        words = f"Too many choices for a page; `blinksim place {found['name']} COUNT` ranks those that you may have."
        words = words if found["gpus"] > 2 else "There are only two."
    else:
        rows = [_choice(row) for row in chosen["rows"]]
        head = ["GPUs", "ask for", "allreduce at most, GB/s", "as good", "not for", "GB/s there"]
        words = _table(head, rows, numbers=(0, 2, 5))
    return f"## Which GPUs should I ask for?\n\n{words}"


def _choice(row: Facts) -> list[str]:
    def rate(key: str) -> str:
        return f"{row[key]:.4g}" if row[key] else "not joined"

    count = f"{row['as_good']:,} of {row['choices']:,}"
    worst = ["", ""] if row["as_good"] == row["choices"] else [_numbers(row["worst"]), rate("worst_algbw")]
    return [str(row["gpus"]), _numbers(row["best"]), rate("algbw"), count, *worst]


def _times(found: Facts) -> str:
    name, rates, library = found["name"], found["predicted"]["rates"], found["library"]
    at = {row["size"]: row for row in library["rows"]}
    real = any(row["real_s"] for row in library["rows"])
    head = [
        "size",
        "quickest",
        "busbw, GB/s",
        "algorithm",
        *([f"{library['name']}", "busbw, GB/s", "published, GB/s"] if real else []),
    ]
    rows = []
    for row in found["predicted"]["rows"]:
        if row["size"] not in _SHOWN:
            continue
        line = [format_size(row["size"]), format_time(row["time_s"]), f"{row['busbw']:.4g}", row["algorithm"]]
        if real:
            other = at.get(row["size"], {"real_s": None})
            line += _real(other) if other["real_s"] else ["", "", ""]
        rows.append(line)
    note = f"Allreduce on all GPUs of {_whose(found)}. "
    note += f"Quickest is the best algorithm that blinksim knows, at {rates} rates. "
    if real:
        share = next((row["share"] for row in reversed(library["rows"]) if row["share"]), "")
        lie = f"; the band is where {share} lie" if share else ""
        note += f"{library['name']} is how long the library takes, by constants ({library['origin']}){lie}. "
    elif rates == "nominal":
        note += "Real runs stay behind nominal rates. "
    note += "Dots are what others measured." if found["measured"]["cells"] else ""
    table = _table(head, rows, numbers=(0, 1, 2, 4, 5, 6) if real else (0, 1, 2))
    drawn = _picture(name, "curves", f"Bus bandwidth of an allreduce on {name} by size")
    return f"## How long does it take?\n\n{note.strip()}\n\n{drawn}\n\n{table}"


def _real(row: Facts) -> list[str]:
    band = f"{row['low_busbw']:.3g} to {row['high_busbw']:.3g}" if row["low_busbw"] else ""
    return [format_time(row["real_s"]), f"{row['real_busbw']:.4g}", band]


def _choice_of_library(found: Facts) -> str:
    timed = [row for row in found["library"]["rows"] if row["choice"]]
    if not timed:
        words = "NCCL does not run on these GPUs, or has no plan for them."
        return f"## What does NCCL choose?\n\n{words}" if found["library"]["name"] == "NCCL" else ""
    rows = []
    for choice, alike in groupby(timed, key=lambda row: row["choice"]):
        run = list(alike)
        low, high = format_size(run[0]["size"]), format_size(run[-1]["size"])
        own = run[-1]["own_busbw"]
        rows.append([low if low == high else f"{low} to {high}", choice, "" if own is None else f"{own:.4g}"])
    note = "An allreduce on one node: algorithm and protocol by size, and the busbw that NCCL expects at the last size."
    note += "" if rows[-1][2] else " It expects none here: its search finds no path, and it goes on with a placeholder."
    return f"## What does NCCL choose?\n\n{note}\n\n{_table(['size', 'choice', 'busbw, GB/s'], rows, numbers=(2,))}"


def _measured(found: Facts) -> str:
    jobs = found["measured"]["jobs"]
    if not jobs:
        near = found["measured"]["relative"]
        other = f"; [{near}]({near}.md) is the nearest relative with some" if near else ""
        words = f"No published measurement of it is known here{other}. [All known](../measurements/measured.md)."
        return f"## What was measured?\n\n{words}"
    rows = [
        [
            one["collective"],
            f"{one['gpus']} on {one['nodes']} node{'s' if one['nodes'] > 1 else ''}",
            f"{one['best_busbw']:.4g}",
            format_size(one["best_size"]),
            f"{one['of_bound']:.0f} %" if one["of_bound"] else "",
            str(one["cells"]),
            "" if one["error"] is None else f"{one['error']:.2g} %",
            one["set"],
        ]
        for one in sorted(jobs, key=lambda one: (one["collective"], one["nodes"], one["gpus"]))
    ]
    head = ["collective", "GPUs", "best busbw, GB/s", "at", "of the bound", "cells", "prediction off", "table"]
    sets = {one["set"]: one for one in jobs}
    sources = "\n".join(
        f"- {_link(one['source'], name)}: {one['ran']}, quality {one['quality']}" for name, one in sets.items()
    )
    count = f"{found['measured']['count']:,} published cells"
    return (
        f"## What was measured?\n\n{count}; `blinksim measured {found['name']}` sets each beside its prediction. "
        f"Prediction off: by how much at the median. "
        f"[What the letters of quality mean](../measurements/measured.md).\n\n"
        f"{_table(head, rows, numbers=(2, 3, 4, 5, 6))}\n\n{sources}"
    )


def _sources(found: Facts) -> str:
    rows = [
        [one["class"], str(one["links"]), one["lanes"], one["lane"], one["latency"], "yes" if one["used"] else "no"]
        for one in found["links"]
    ]
    table = _table(["links", "directed", "lanes", "a lane", "latency", "used on one node"], rows, numbers=(1, 2, 3, 4))
    assumed = "".join(f"\n- {html.escape(one)}" for one in found["assumed"])
    unknown = f"\n\nNo document states these, so they are assumed:\n{assumed}" if assumed else ""
    return f"## Where do the numbers come from?\n\n{html.escape(found['source'])}.\n\n{table}{unknown}"


def index(machines: Iterable[Facts]) -> str:
    """The table of all machines, for `javascripts/machine-table.js` to sort and search."""
    head = ["machine", "maker", "year", "GPUs", "bound", "where switches add", "best published", "published cells"]
    cells = "".join(
        f'<th scope="col"{NUMBER if place > 1 else ""}>{html.escape(one)}</th>' for place, one in enumerate(head)
    )
    rows = "".join(f"<tr>{_index_row(found)}</tr>\n" for found in machines)
    return (
        f'<div class="machine-table" markdown="0"><table id="machines" class="machines"><thead><tr>{cells}</tr></thead>'
        f"<tbody>\n{rows}</tbody></table></div>\n"
    )


def _index_row(found: Facts) -> str:
    bound = next(row for row in found["bounds"] if row["collective"] == "allreduce")
    factor = bound["busbw"] / bound["algbw"]
    added = f"{bound['in_network'] * factor:.4g}" if bound["in_network"] else ""
    jobs = [one for one in found["measured"]["jobs"] if (one["nodes"], one["collective"]) == (1, "allreduce")]
    best = [one["best_busbw"] for one in jobs if one["gpus"] == found["gpus"]]
    also = f" Also {', '.join(found['also'])}." if found["also"] else ""
    words = f'<span class="also">{html.escape(found["title"] + "." + also)}</span>'
    cells = [
        (f'<a href="{found["name"]}.html">{found["name"]}</a>{words}', False),
        (html.escape(found["maker"]), False),
        (str(found["year"] or ""), True),
        (str(found["gpus"]), True),
        (f"{bound['busbw']:.4g}", True),
        (added, True),
        (f"{max(best):.4g}" if best else "", True),
        (str(found["measured"]["count"] or ""), True),
    ]
    return "".join(f"<td{NUMBER if number else ''}>{text}</td>" for text, number in cells)


def _picture(name: str, what: str, words: str) -> str:
    """A picture as wide as the page; a touch opens it alone."""
    file, said = f"{name}-{what}.svg", html.escape(words, quote=True)
    return f'<div class="machine-picture" markdown="0"><a href="{file}"><img src="{file}" alt="{said}"></a></div>'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Iterable[int] = ()) -> str:
    right = set(numbers)
    line = "|".join("--:" if place in right else ":--" for place in range(len(head)))
    body = "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in rows)
    return f"| {' | '.join(head)} |\n|{line}|\n{body}"


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _numbers(members: Sequence[str]) -> str:
    """Names such as gpu0, gpu1 as numbers, others as they are."""
    plain = [name.removeprefix("gpu") for name in members]
    return ", ".join(plain) if all(one.isdigit() for one in plain) else ", ".join(members)


def _link(source: str, words: str) -> str:
    """Addresses become links, but those that name a folder of many files stay text."""
    return f"[{words}](https://{source})" if _SOURCE.match(source) else f"{words} ({html.escape(source)})"
