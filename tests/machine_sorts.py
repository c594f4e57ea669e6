"""One machine of each sort for tests of the whole catalogue: the others are asked in `make test-every`."""

from __future__ import annotations

import pytest
from _pytest.mark.structures import ParameterSet

# These differ from one of the others in rates and adapters only.
LIKE_OTHERS = {
    "a3-highgpu-8g", "a3-megagpu-8g", "a3-ultragpu-8g", "bm.gpu.h100.8", "bm.gpu4.8", "gaudi2", "gb300-nvl72",
    "hgx-b300", "hgx-h20", "hgx-h800", "jupiter", "leonardo", "mi325x", "mi355x", "nd-h100-v5", "nd-h200-v5",
    "p3dn.24xlarge", "p5e.48xlarge", "p5en.48xlarge", "p6-b200.48xlarge", "p6-b300.48xlarge", "perlmutter",
    "rtx-pro-6000-pcie",
}  # fmt: skip


def of_each_sort(*values: object, machine: str) -> ParameterSet:
    """A case of a machine; of one that is like others, marked so."""
    return pytest.param(*values, marks=[pytest.mark.alike] if machine in LIKE_OTHERS else [])
