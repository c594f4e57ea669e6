"""Writes models/full-speed: the times of our programs and of NCCL in validate/results, for pictures beside projections.

    PYTHONPATH=. python3 validate/recipes/measured_times.py

Out of place and float32 at powers of two; of NCCL without NVLS. A row that several results have is the first of them.
"""

from __future__ import annotations

import json
from pathlib import Path

from validate.recipes.arguments import arguments, script

RESULTS = Path(__file__).parents[1] / "results"
TABLE = Path(__file__).parents[2] / "models" / "full-speed" / "hgx-h200.csv"
HEAD = "collective,gpus,algorithm,protocol,size_bytes,time_us"
# By result: where rows of our programs and of NCCL are. On four GPUs an older kernel made the elementary runs.
SOURCES = {
    **{f"full-speed-{gpus}gpu": ("ours", "nccl") for gpus in (2, 3, 4, 6, 8)},
    **{f"elementary-{gpus}gpu": ("allreduce", "nccl_allreduce") for gpus in (2, 8)},
}


def text(results: Path) -> str:
    """The table, by collective, GPUs, algorithm, protocol and size."""
    found: dict[tuple[str, int, str, str, int], float] = {}
    for name, parts in SOURCES.items():
        content = json.loads((results / f"{name}.json").read_text())
        gpus = len(content["provenance"]["gpus"])
        for part in parts:
            for row in content[part]:
                if not row.get("in_place"):
                    what = row.get("collective", "allreduce"), gpus, row.get("algorithm", "nccl")
                    size = row.get("size_bytes", row.get("used_bytes"))
                    found.setdefault((*what, row.get("protocol", ""), size), 1e6 * row["time_s"])
    rows = [",".join([*map(str, key), f"{time:.4g}"]) for key, time in sorted(found.items())]
    return "\n".join([HEAD, *rows]) + "\n"


def main() -> None:
    arguments(__doc__).parse_args()
    TABLE.write_text(text(RESULTS), encoding="utf-8")


if __name__ == "__main__":
    script(main, __file__)
