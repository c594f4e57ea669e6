"""The CUDA source compiles for real GPUs, by NVRTC or nvcc where one of them is present (no GPU is needed for that)."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

from blinksim.gpu.execution import gpu_devices
from blinksim.gpu.programs.dtypes import ELEMENT_TYPES
from blinksim.gpu.programs.tables import kernel_source

CASES = [("float32", "sum", False), ("float32", "sum", True), ("bfloat16", "max", True), ("int8", "prod", False)]
QUICK = (("float32", "sum", False), ("bfloat16", "max", True))
NVCC = shutil.which("nvcc")


def nvrtc() -> str | None:
    """The NVRTC library of a CUDA toolkit, or of the wheel nvidia-cuda-nvrtc."""
    for name in ("nvidia.cuda_nvrtc", "nvidia.cu13"):
        try:
            spec = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            continue
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            for path in sorted(Path(folder).glob("lib*/libnvrtc.so.*")):
                return str(path)
    return ctypes.util.find_library("nvrtc")


LIBRARY = nvrtc()


def compile_nvrtc(source: str) -> str:
    """PTX for compute capability 9.0; the compiler's log is the assertion's message."""
    library = ctypes.CDLL(LIBRARY)
    program = ctypes.c_void_p()
    assert library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None) == 0
    options = (ctypes.c_char_p * 2)(b"-std=c++17", b"-arch=compute_90")
    status = library.nvrtcCompileProgram(program, 2, options)

    def text(what: str) -> str:
        size = ctypes.c_size_t()
        getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(library, f"nvrtcGet{what}")(program, buffer)
        return buffer.value.decode()

    assert status == 0, text("ProgramLog")
    return text("PTX")


@pytest.mark.skipif(LIBRARY is None, reason="no NVRTC: pip install nvidia-cuda-nvrtc-cu12")
@pytest.mark.parametrize(("dtype", "op", "packets"), CASES)
def test_nvrtc_compiles_the_kernels(dtype: str, op: str, packets: bool) -> None:
    ptx = compile_nvrtc(kernel_source(ELEMENT_TYPES[dtype], op, packets))
    assert ".entry run_program(" in ptx
    assert ".entry run_stream(" in ptx
    # What the memory model asks for: flags are released and acquired for the whole system, packets go as one.
    assert "st.release.sys.global.u64" in ptx
    assert ("fence.acq_rel.sys" in ptx) != packets
    # Warps of packets leave one by one when they give up: no barrier may count on them.
    assert ("bar.sync 1, " in ptx) != packets
    assert ("bar.red.and.pred q, 1, " in ptx) != packets
    assert "ld.acquire.sys.global.u64" in ptx
    assert ("st.volatile.global.v2.u64" in ptx) == packets


@pytest.mark.skipif(LIBRARY is None, reason="no NVRTC: pip install nvidia-cuda-nvrtc-cu12")
def test_nvrtc_compiles_the_stopwatch() -> None:
    assert ".entry hold(" in compile_nvrtc(Path(gpu_devices.__file__).with_name("hold.cu").read_text())


@pytest.mark.skipif(NVCC is None, reason="no nvcc")
@pytest.mark.parametrize(
    ("dtype", "op", "packets"),
    # Both protocols; every type and op goes through NVRTC, the host's compiler, and here in make test-all.
    [pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow) for case in CASES],
)
def test_nvcc_compiles_the_kernels(dtype: str, op: str, packets: bool, tmp_path: Path) -> None:
    source = tmp_path / "kernels.cu"
    source.write_text(kernel_source(ELEMENT_TYPES[dtype], op, packets))
    command = [str(NVCC), "-std=c++17", "-arch=sm_90", "-ptx", "-o", str(tmp_path / "kernels.ptx"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
