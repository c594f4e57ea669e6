"""Bandwidth from one GPU to another, by kind of copy and number of thread blocks.

PYTHONPATH=. python3 validate/recipes/ways.py --gpus 4 --out results
"""

from __future__ import annotations

from blinksim.gpu.execution.gpu_devices import measure_copies, measure_pairs
from validate.recipes.arguments import arguments, script
from validate.recipes.notes import Notebook, provenance


def main() -> None:
    parser = arguments(__doc__, 2)
    options = parser.parse_args()
    gpus = range(options.gpus)
    notes = Notebook(
        options.out / f"ways-{options.gpus}gpu.json",
        provenance(options.gpus, f"python3 validate/recipes/ways.py --gpus {options.gpus}"),
    )
    notes.add("pairs", measure_pairs(gpus))
    for way in measure_copies(gpus):
        entry = way.to_dict()
        for sample in entry["samples"]:
            # To the nanosecond, of which events tell 500 apart: eight GPUs have very many samples.
            sample["times_s"] = [round(time, 9) for time in sample["times_s"]]
        notes.add("ways", entry)
        if way.gpu == 0 and way.peers[0] == 1:
            print(f"{way.kind:<12} {way.blocks:>3} blocks {way.alpha_s * 1e6:>7.2f} us {way.rate / 1e9:>7.1f} GB/s")


if __name__ == "__main__":
    script(main, __file__)
