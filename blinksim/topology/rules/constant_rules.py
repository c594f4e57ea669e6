"""Rules about measured constants: what programs and NCCL take on the machine, beside what hardware and links allow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from blinksim.topology.rules.rule import Breach, rule, used
from blinksim.units import format_rate, format_size, format_time

if TYPE_CHECKING:
    from blinksim.topology.graph import Topology

# Seconds that a step of a program or of NCCL, or the start of either, takes at most on any hardware that we know of.
_LONGEST = 100e-6
# The least and the most of others, by field. On H200: 15 us, 300 us, 0.015 ns, 0.02, 3.7, 1.07, 25 MiB, 132.
_RANGES: dict[str, tuple[float, float]] = {
    "queue_s": (0.0, 1e-3),
    "turns_s": (0.0, 1e-2),
    "byte_s": (1e-12, 1e-9),
    "fan": (0.0, 0.5),
    "soft": (1.0, 20.0),
    "wire": (1.0, 2.0),
    "cache_bytes": (2**20, 2**30),
    "blocks": (8, 1024),
    "channels": (1, 64),
}
# Of a port, as shares of the bandwidth of the links: kernels move less than a data sheet's figure, and on H200 a little
# more came in than went out. NCCL's LL sends half as many bytes, and on few channels any protocol sends less.
_LEAST_OF_LINKS, _MOST_OUT, _MOST_IN = 0.25, 1.1, 1.3
# Where a machine file states what a field holds.
_KEYS = {"packets": ("protocols", "ll128"), "flags": ("protocols", "simple")}
_SECTION = "execution"


@rule("plausible-constants", "warning", "mind us against ms and GB/s against Gb/s, or calibrate again")
def _plausible_constants(topology: Topology) -> Iterator[Breach]:
    """Measured constants of programs and of NCCL are such as hardware has, and fit the links."""
    for constants, keys in ((topology.execution, (_SECTION,)), (topology.nccl_rates, (_SECTION, "nccl"))):
        if constants is not None:
            yield from _odd(constants, keys)
            yield from _against_links(constants, keys, _leaving(topology))
            if constants.error is not None and constants.error.median > constants.error.p90:
                place = (*keys, "error")
                yield Breach(f"{'.'.join(place)}: the median is above p90, which is above half of the errors", place)


def _odd(constants: Any, keys: tuple[str, ...]) -> Iterator[Breach]:
    """The constants that hardware does not have, also those in groups."""
    for field in fields(constants):
        value = getattr(constants, field.name)
        if is_dataclass(value) and field.name not in ("measured", "error"):
            yield from _odd(value, keys + _KEYS.get(field.name, (field.name,)))
            continue
        longest = (0.0, _LONGEST) if field.name.endswith("_s") else None
        least, most = _RANGES.get(field.name) or longest or (None, None)
        if value is not None and least is not None and most is not None and not least <= value <= most:
            place = (*keys, field.name.removesuffix("_s").removesuffix("_bytes"))
            had, low, high = (_text(field.name, number) for number in (value, least, most))
            yield Breach(f"{'.'.join(place)} is {had}; hardware has {low} to {high}", place)


def _text(name: str, value: float) -> str:
    if name == "byte_s":
        return f"{value / 1e-9:.4g} ns"
    if name.endswith("_s"):
        return format_time(value)
    return format_size(int(value)) if name.endswith("_bytes") else f"{value:.4g}"


def _leaving(topology: Topology) -> float | None:
    """Bytes/s from the first member to switches, None if no link leads to one."""
    part = used(topology)
    switches = {device.name for device in part.devices if device.kind == "switch"}
    rates = [link.bandwidth for link in part.links if link.src == part.members[0] and link.dst in switches]
    return float(sum(rates)) if rates else None


def _against_links(constants: Any, keys: tuple[str, ...], leaving: float | None) -> Iterator[Breach]:
    """What constants say of a port that its links do not allow, or that is far below them."""
    if leaving is None:
        yield Breach(f"{'.'.join(keys)} is of GPUs around a switch, and no link leads from a GPU to one", keys)
        return
    if hasattr(constants, "ports"):
        rates = {
            ("ports", "out"): (constants.ports.out, _LEAST_OF_LINKS, _MOST_OUT),
            ("ports", "into"): (constants.ports.into, _LEAST_OF_LINKS, _MOST_IN),
        }
    else:
        rates = {(name, "rate"): (getattr(constants, name).rate, 0.0, _MOST_OUT) for name in ("ll", "ll128", "simple")}
    for end, (rate, least, most) in rates.items():
        if not least * leaving <= rate <= most * leaving:
            place = keys + end
            yield Breach(
                f"{'.'.join(place)} is {format_rate(rate)}; the links to the switch carry {format_rate(leaving)}", place
            )
