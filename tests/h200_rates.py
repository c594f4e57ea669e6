"""The constants of H200 behind an NVSwitch, fitted to 600 measurements, for tests of the simulation."""

from __future__ import annotations

from blinksim.timing.measured_constants import ExecutionRates, FlagRates, Origin, PacketRates, PortRates

US = 1e-6
H200 = ExecutionRates(
    hardware="NVIDIA H200",
    measured=Origin("validate/results", "2026-11-20", "580.159.04"),
    gpus=(2, 3, 4, 6, 8),
    blocks=132,
    launch_s=7.6 * US,
    announce_s=0.5 * US,
    visit_s=0.595 * US,
    ports=PortRates(out=368e9, into=400e9, fan=0.026, queue_s=50 * US),
    packets=PacketRates(
        piece_s=0.56 * US,
        round_s=0.54 * US,
        local_s=0.30 * US,
        inbox_s=0.56 * US,
        step_s=1.0 * US,
        own_s=1.0 * US,
        soft=2.4,
    ),
    flags=FlagRates(
        before_s=0.37 * US,
        piece_s=1.09 * US,
        round_s=0.49 * US,
        far_s=0.27 * US,
        cache_bytes=25 * 2**20,
        byte_s=0.0148e-9,
        fence_s=0.55 * US,
        flag_s=1.68 * US,
        own_s=1.0 * US,
        soft=4.0,
    ),
)
