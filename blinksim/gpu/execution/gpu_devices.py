"""The GPUs of this machine: their presence, their access to each other's memory, and what runs on them at once."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from blinksim.errors import InfeasibleError, InputError, MissingError
from blinksim.gpu.programs.handover import receivers
from blinksim.gpu.programs.program import Program
from blinksim.topology.graph import Topology

# The most threads of a block (the number that kernels.cu is compiled for), and of a warp.
THREADS, WARP = 512, 32
_ALREADY_ENABLED = 704
# CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED of cuda.h.
_NATIVE_ATOMIC = 3


def require_cupy() -> Any:
    """The cupy module, on a machine with at least one GPU; raises `MissingError` otherwise."""
    try:
        import cupy
    except ImportError:
        raise MissingError(
            "running on GPUs needs CuPy: pip install 'blinksim[gpu-cuda13]', or gpu-cuda12 (from a checkout "
            "'.[gpu-cuda13]'); nvidia-smi shows which CUDA the driver can do"
        ) from None
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise MissingError(f"running on GPUs needs a GPU and its driver: {error}") from None
    if count < 1:
        raise MissingError("running on GPUs needs a GPU; this machine has none")
    return cupy


def map_devices(program: Program, topology: Topology, gpus: Sequence[int] | None = None) -> list[int]:
    """The CUDA device of each of the program's devices, checked: GPUs, present, and with access to their peers.

    gpus: CUDA devices in the order of the program's devices; by default 0, 1, 2, …. Raises `InfeasibleError` if the
    schedule makes other devices than GPUs compute, `MissingError` if the machine lacks GPUs or peer access.
    """
    for name in program.devices:
        if topology.device(name).kind not in ("gpu", "tile"):
            raise InfeasibleError(f"{name} is a {topology.device(name).kind}: only GPUs can run the ops of a schedule")
    cupy = require_cupy()
    present = cupy.cuda.runtime.getDeviceCount()
    needed = len(program.devices)
    if gpus is None:
        if present < needed:
            raise MissingError(f"the schedule runs on {needed} GPUs, and this machine has {present}")
        chosen = list(range(needed))
    else:
        chosen = [int(gpu) for gpu in gpus]
        if len(chosen) != needed:
            raise InputError(f"the schedule runs on {needed} GPUs, and {len(chosen)} are named")
        for gpu in chosen:
            if not 0 <= gpu < present:
                raise MissingError(f"there is no GPU {gpu}: this machine has {present}, numbered from 0")
    for device, others in enumerate(receivers(program)):
        for other in others:
            enable_peer(cupy, chosen[device], chosen[other])
            # Flags and heralds go both ways.
            enable_peer(cupy, chosen[other], chosen[device])
    return chosen


def enable_peer(cupy: Any, gpu: int, peer: int) -> None:
    """Lets kernels on `gpu` use the memory of `peer`; raises `MissingError` if the hardware cannot."""
    if gpu == peer:
        return
    runtime = cupy.cuda.runtime
    if not runtime.deviceCanAccessPeer(gpu, peer):
        raise MissingError(
            f"GPU {gpu} cannot access the memory of GPU {peer} (see nvidia-smi topo -p2p w); choose GPUs that can"
        )
    with cupy.cuda.Device(gpu):
        try:
            runtime.deviceEnablePeerAccess(peer)
        except runtime.CUDARuntimeError as error:
            if error.status != _ALREADY_ENABLED:
                raise MissingError(f"GPU {gpu} cannot access the memory of GPU {peer}: {error}") from None


def keeps_lines_whole(cupy: Any, gpus: Sequence[int]) -> bool:
    """True if a store of 128 bytes reaches each of the other GPUs as one, which packets need.

    NVLink does that from compute capability 7.0 on; PCIe need not (NCCL takes LL128 by the same rule). Atomics work
    over NVLink only, which tells the two apart; where the driver does not say, the answer is False.
    """
    different = list(dict.fromkeys(gpus))
    if any(int(cupy.cuda.Device(gpu).compute_capability) < 70 for gpu in different):
        return False
    return all(native_atomics(a, b) for a in different for b in different if a != b)


def native_atomics(gpu: int, peer: int) -> bool:
    """True if the driver says that `gpu` can do atomics in the memory of `peer`; CuPy has no call for it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        devices = [ctypes.c_int(), ctypes.c_int()]
        value = ctypes.c_int()
        for device, number in zip(devices, (gpu, peer), strict=True):
            if driver.cuDeviceGet(ctypes.byref(device), ctypes.c_int(number)):
                return False
        status = driver.cuDeviceGetP2PAttribute(ctypes.byref(value), ctypes.c_int(_NATIVE_ATOMIC), *devices)
    except (OSError, AttributeError):
        return False
    return status == 0 and value.value == 1


def resident_blocks(cupy: Any, gpu: int, function: Any, threads: int = THREADS) -> int:
    """How many blocks of a kernel run at once on a GPU: they wait for each other, so no more may be launched."""
    with cupy.cuda.Device(gpu) as device:
        each = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(function.kernel.ptr, threads, 0)
        return int(each) * int(device.attributes["MultiProcessorCount"])


@lru_cache(maxsize=64)
def load_kernel(gpu: int, source: str, name: str) -> Any:
    """A kernel, compiled for a GPU and loaded there: loading later could wait for a kernel that waits for this one."""
    cupy = require_cupy()
    with cupy.cuda.Device(gpu):
        function = cupy.RawModule(code=source, options=("-std=c++17",)).get_function(name)
        # Asking for an attribute loads the code, also where the driver loads lazily.
        _ = function.num_regs
        return function
