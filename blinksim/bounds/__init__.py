"""The best rate that is possible, with a certificate.

`bound(topology, collective)` gives every bound with its scope; `certificate_from_dict` reads one back to
check it.
"""

from blinksim.bounds.bound_result import Bound, BoundResult
from blinksim.bounds.certificates import Certificate, Cut, Partition, Phases
from blinksim.bounds.claims import certificate_from_dict
from blinksim.bounds.compute import bound, in_flight
from blinksim.bounds.lengths import Lengths

__all__ = [
    "Bound", "BoundResult", "Certificate", "Cut", "Lengths", "Partition", "Phases", "bound",
    "certificate_from_dict", "in_flight",
]  # fmt: skip
