"""The best rate that is possible, with a certificate.

`bound(topology, collective)` gives every bound with its scope; `certificate_from_dict` reads one back to check it.
"""

from blinksim.bounds.certificate import Certificate, Cut, Partition, Phases
from blinksim.bounds.compute import bound
from blinksim.bounds.lengths import Lengths
from blinksim.bounds.read import certificate_from_dict
from blinksim.bounds.results import Bound, BoundResult

__all__ = [
    "Bound",
    "BoundResult",
    "Certificate",
    "Cut",
    "Lengths",
    "Partition",
    "Phases",
    "bound",
    "certificate_from_dict",
]
