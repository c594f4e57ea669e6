"""What a table of nvidia-smi leaves open: the generation of the GPUs, and whether their NVLinks lead to NVSwitches.

On machines with NVSwitches NV# is what each GPU has to the switches, shared by all its peers; on others it is the
pair's own. The table looks the same, so the number of NVLinks that a GPU can have decides.
"""

from __future__ import annotations

from blinksim.formats.smi_table import SmiTable

# NVLinks of one GPU, by what its name holds; no GPU has more than 18.
_MODELS = (
    *(("P100", 60, 4), ("V100", 70, 6), ("GH200", 90, 18), ("A100", 80, 12), ("A800", 80, 8), ("H800", 90, 8)),
    *(("H100", 90, 18), ("H200", 90, 18), ("H20", 90, 18), ("B100", 100, 18), ("B200", 100, 18), ("B300", 100, 18)),
    *(("A6000", 86, 4), ("A5000", 86, 4), ("A40", 86, 4), ("3090", 86, 4)),
)
_MOST_NVLINKS = 18
_MOST_VOLTA, _MOST_AMPERE = 6, 12
_GENERATIONS = {70: "Volta (V100)", 80: "Ampere (A100)", 90: "Hopper (H100, H200)", 100: "Blackwell (B200)"}
_BLACKWELL_LANE = 40 * 10**9
"""Bytes/s of an NVLink above which it is of a generation later than Hopper."""


def switch_lanes(table: SmiTable) -> int:
    """NVLinks of a GPU to the NVSwitches, 0 if NV# counts those of a pair."""
    gpus = table.gpus
    counts = {table.lanes(a, b) for a in gpus for b in gpus if a != b}
    if len(counts) != 1 or len(gpus) < 3:
        return 0
    (count,) = counts
    most = min((known[1] for gpu in gpus if (known := _known(table, gpu))), default=_MOST_NVLINKS)
    if (len(gpus) - 1) * count > most:
        # No GPU has that many NVLinks to its peers one by one.
        return count
    # Four GPUs with 6 each are a Grace Hopper board, whose links are the pairs' own, or part of a DGX-2.
    part_of_switched = len(gpus) > 3 and count >= 6 and not table.models and not table.grace
    return count if part_of_switched else 0


def assumed(table: SmiTable) -> list[str]:
    """What was taken for granted because the text names no models, in words."""
    gpus = [gpu for gpu in table.gpus if _known(table, gpu) is None]
    most = max((table.lanes(a, b) for a in gpus for b in gpus if a != b), default=0)
    if not gpus or not most:
        return []
    generation = _GENERATIONS[capability(table, gpus[0])]
    found = [] if table.lane is not None else [f"assumed: NVLinks of {generation} GPUs"]
    if switch_lanes(table):
        found.append(f"assumed: NV{most} leads to NVSwitches, as on an HGX or a DGX-2, and is not the pair's own")
    elif len(table.gpus) > 2:
        found.append("assumed: NV# counts the NVLinks of a pair, and there is no NVSwitch")
    named = next((table.models[number] for number in sorted(table.models)), "")
    why = f"the model {named!r} is not known here" if named else "the text names no model"
    return [*found, f"{why}: put what nvidia-smi -L prints above the table"] if found else []


def model_name(table: SmiTable, gpu: str) -> str:
    """The model of a GPU; that of the others where all those named are alike; empty if the text names none."""
    named = table.models
    return named.get(int(gpu[3:]), next(iter(named.values())) if len(set(named.values())) == 1 else "")


def capability(table: SmiTable, gpu: str) -> int:
    """The compute capability of a GPU times ten: of its model, or of the generation that has such NVLinks."""
    known = _known(table, gpu)
    if known:
        return known[0]
    if table.lane is not None and table.lane > _BLACKWELL_LANE:
        return 100
    most = max((table.lanes(gpu, other) for other in table.gpus if other != gpu), default=0)
    if most > _MOST_AMPERE and table.grace and _share_a_cpu(table):
        return 100
    if most > _MOST_AMPERE or table.grace:
        return 90
    return 80 if most > _MOST_VOLTA else 70


def _share_a_cpu(table: SmiTable) -> bool:
    """True if two GPUs are near the same CPU: a Grace CPU has one Hopper GPU, or two Blackwell GPUs."""
    near = list(table.affinity.values())
    return len(set(near)) < len(near)


def _known(table: SmiTable, gpu: str) -> tuple[int, int] | None:
    """(compute capability times ten, NVLinks) of a GPU whose model the text names."""
    text = model_name(table, gpu)
    return next(((sm, most) for part, sm, most in _MODELS if part in text), None)
