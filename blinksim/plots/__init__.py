"""Pictures with units, readable without colour; each function returns a matplotlib Figure.

>>> import blinksim as bs
>>> picture = bs.plot.topology("dgx1-v100", bs.bound("dgx1-v100", "allreduce"))
>>> bs.plot.save(picture, "dgx1.svg").name
'dgx1.svg'
"""

from __future__ import annotations

from blinksim.plots.compare_plot import compare, compare_machines, measured, pareto
from blinksim.plots.style import COLOURS, FORMATS, MARKERS, check, figure, panels, save, size_axis
from blinksim.plots.sweep_plot import sweep
from blinksim.plots.timeline_plot import gantt, loads, utilisation
from blinksim.plots.topology_plot import topology, trees
from blinksim.plots.traffic_plot import traffic

__all__ = [
    "COLOURS", "FORMATS", "MARKERS", "check", "compare", "compare_machines", "figure", "gantt", "loads", "measured",
    "panels", "pareto", "save", "size_axis", "sweep", "topology", "traffic", "trees", "utilisation",
]  # fmt: skip
