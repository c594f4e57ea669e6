"""What bounds say in words, and that what they say is what their sums are."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest

import blinksim as bs
from blinksim.bounds.bound_result import NVLS_GRANTS, ONLY_TREES, REDUCING_SWITCHES, assumed_by, with_reduction
from blinksim.bounds.quick import quick_bound
from blinksim.collective import Collective


def test_a_uniform_cut_is_said_for_one_port() -> None:
    found = bs.bound("hgx-h100", "allreduce").headline
    words = found.certificate.words(bs.load("hgx-h100").select())
    assert (
        words == "each GPU's port must carry every byte 2(n-1)/n times each way, on average: 450 GB/s allow 257.1 GB/s"
    )


@pytest.mark.parametrize(
    ("machine", "collective", "often"),
    [
        ("switch:6@100GB/s", "allreduce", Fraction(10, 6)),
        ("switch:6@100GB/s", "allgather", Fraction(5, 6)),
        ("hgx-h200", "reducescatter", Fraction(7, 8)),
    ],
)
def test_the_sentence_divides_to_the_rate(machine: str, collective: str, often: Fraction) -> None:
    part = bs.load(machine).select()
    certificate = quick_bound(part, Collective(collective))
    port = sum(link.bandwidth for link in part.links if link.src == part.members[0])
    assert certificate.rate == port / often
    if certificate.kind == "lengths":
        formula = "2(n-1)/n" if collective == "allreduce" else "(n-1)/n"
        numbers = [float(text) for text in re.findall(r"([\d.]+) GB/s", certificate.words(part))]
        assert f"every byte {formula} times" in certificate.words(part)
        assert numbers[1] == pytest.approx(numbers[0] / float(often), rel=1e-3)


def test_unequal_ports_are_said_together() -> None:
    part = bs.load("switch:6@100GB/s", edits="degrade gpu0-switch bandwidth=50GB/s").select()
    from blinksim.bounds.lengths import Lengths

    lengths = {link.name: Fraction(1) for link in part.links}
    found = Lengths.of(part, Collective("allreduce"), lengths)
    # Five ports of 100 and one of 50, each way; two trees of five edges of two links.
    assert found.rate == Fraction(1100 * 10**9, 20)
    assert (
        found.words(part)
        == "20 times the data must cross the 12 links of GPUs, which carry 1100 GB/s together: 55 GB/s"
    )
    lengths[part.links[0].name] = Fraction(2)
    mixed = Lengths.of(part, Collective("allreduce"), lengths)
    assert "weighted by the certificate, 12 links" in mixed.words(part)


def test_what_is_assumed_decides_what_exceeds() -> None:
    part, wanted = bs.load("hgx-h100").select(), Collective("allreduce")
    held = quick_bound(part, wanted)
    lifted = quick_bound(with_reduction(part), wanted, NVLS_GRANTS)
    assert assumed_by(held, wanted) == ONLY_TREES == bs.bound(part, wanted).headline.assumes
    assert assumed_by(lifted, wanted).startswith(REDUCING_SWITCHES)
    # A switch that reduces into readers: every port passes the vector once each way, and an eighth that it owns.
    assert lifted.rate == Fraction(450 * 8, 9) * 10**9


@pytest.mark.parametrize("machine", ["hgx-h100", "hgx-h200", "dgx1-v100", "dgx1-p100", "dgx-a100"])
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "broadcast"])
def test_nccl_exceeds_no_bound_beside_it(machine: str, collective: str) -> None:
    for size in ("1MiB", "1GiB", "16GiB"):
        found = bs.project(machine, collective, size, algorithm="nccl")
        assert found.rates.startswith("nccl")
        assert found.bound is None or found.algbw <= found.bound.rate
