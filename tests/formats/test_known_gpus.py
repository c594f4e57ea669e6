"""Recorded machines get what was measured of the same GPUs and NVLinks."""

from __future__ import annotations

from pathlib import Path

import pytest

from blinksim.answers.project import project
from blinksim.errors import InputError
from blinksim.formats.shipped import known_gpus
from blinksim.formats.shipped.machine_names import catalogue_file
from blinksim.machines import check, load
from blinksim.question import Question

TOPO = Path("tests/data/captures/h200x8/topo.xml")
SMI = Path("tests/data/captures/h200x8/smi_topo.txt")


@pytest.mark.parametrize("file", [TOPO, SMI])
@pytest.mark.parametrize("size", [2**14, *(pytest.param(size, marks=pytest.mark.slow) for size in (2**20, 2**26))])
def test_a_recorded_machine_answers_as_the_one_of_the_catalogue(file: Path, size: int) -> None:
    mine, own = (Question(str(name), rates="measured").part() for name in (file, "hgx-h200"))
    assert (mine.execution, mine.nccl_rates) == (own.execution, own.nccl_rates)
    found, expected = project(mine, "allreduce", size), project(own, "allreduce", size)
    assert (found.algorithm, found.time_s, found.model) == (expected.algorithm, expected.time_s, "execution")


def test_at_nominal_rates_links_stay_what_they_are() -> None:
    mine = load(TOPO)
    assert mine.execution is not None
    assert {link.lane_bandwidth for link in mine.links if link.kind == "nvlink"} == {25 * 10**9}
    assert check(mine) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('device="0x2335"', 'device="0x2331"'),  # the card for PCIe
        ('count="18"', 'count="17"'),
        ('sm="90"', 'sm="80"'),
    ],
)
@pytest.mark.parametrize("everywhere", [True, False])
def test_other_gpus_or_nvlinks_have_no_constants(old: str, new: str, everywhere: bool, tmp_path: Path) -> None:
    file = tmp_path / "topo.xml"
    file.write_text(TOPO.read_text().replace(old, new, -1 if everywhere else 1))
    assert load(file).execution is None
    with pytest.raises(InputError, match="nobody measured such GPUs and NVLinks; take nominal or nccl"):
        load(file, rates="measured")


def test_every_gpu_is_that_of_its_machine() -> None:
    for gpu in known_gpus.known_gpus():
        assert catalogue_file(gpu.machine).is_file()
        assert all(len(number) == 4 and int(number, 16) for number in gpu.pci)
    numbers = [number for gpu in known_gpus.known_gpus() for number in gpu.pci]
    assert len({*numbers}) == len(numbers)


def test_names_of_drivers_lead_to_constants() -> None:
    assert known_gpus.named("NVIDIA H100 80GB HBM3") == known_gpus.named("NVIDIA H100")
    assert known_gpus.execution_rates("NVIDIA H200") == load("hgx-h200").execution
    # Derived, not measured.
    assert known_gpus.execution_rates("NVIDIA H100 80GB HBM3") is None
    assert known_gpus.execution_rates("NVIDIA H100 PCIe") is None
