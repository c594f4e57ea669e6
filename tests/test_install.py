"""Installed copies work away from the checkout: the wheel made from the sdist, and an editable install.

Nothing is downloaded: each fresh environment borrows the third-party packages of the one that runs the tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DATA_FOLDERS = ("topologies", "models", "schedules")
MAX_BYTES = 6_000_000
WHERE = """
import json, pathlib
import blinksim
from blinksim import data_files
print(json.dumps({
    "package": str(pathlib.Path(blinksim.__file__).resolve().parent),
    "data": {name: str(data_files.folder(name).resolve()) for name in ("topologies", "models", "schedules")},
}))
"""
LOAD_EVERYTHING = """
import json
from blinksim import machines
from blinksim.formats.shipped import machine_names
from blinksim.timing import projection
print(json.dumps({
    "ranks": {name: machines.load(name).ranks for name in machine_names.names()},
    "presets": [projection.load_preset(name).name for name in projection.presets()],
}))
"""


def run(command: list[str | Path], folder: Path) -> str:
    """stdout of a command run in `folder`, with no variable but that folder as the home."""
    done = subprocess.run(command, cwd=folder, env={"HOME": str(folder)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def install(folder: Path, *requirement: str | Path) -> Path:
    """The programs of a new environment that has only blinksim of its own."""
    venv.create(folder, with_pip=False, symlinks=True)
    programs = folder / "bin"
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(run([programs / "python", "-c", ask], folder).strip())
    borrowed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    # A path file inside a borrowed folder is not read, so the editable install of this environment stays unseen.
    (site / "borrowed.pth").write_text("\n".join(sorted(borrowed)) + "\n")
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--python",
        programs / "python",
        "install",
    ]
    alone = ["--quiet", "--no-index", "--no-deps", "--ignore-installed", "--no-build-isolation"]
    run([*pip, *alone, *requirement], folder)
    return programs


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel made from the sdist, which is what a package index would hand out."""
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT], folder)
    assert len(list(folder.glob("*.tar.gz"))) == 1
    (made,) = folder.glob("*.whl")
    return made


@pytest.mark.slow
def test_the_wheel_carries_code_and_data_as_they_are_here(wheel: Path) -> None:
    expected = {
        f"blinksim/{path.relative_to(ROOT / 'blinksim')}": path
        for path in (ROOT / "blinksim").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    for name in DATA_FOLDERS:
        files = [path for path in (ROOT / name).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        data = {path.relative_to(ROOT / name): path for path in files if path.name != "classics.py"}
        assert data, f"{name} is empty"
        expected |= {f"blinksim/_data/{name}/{inside}": path for inside, path in data.items()}
    expected["blinksim/_data/docs/glossary.md"] = ROOT / "docs" / "glossary.md"
    with zipfile.ZipFile(wheel) as archive:
        packed = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
        licences = [name for name in archive.namelist() if name.endswith(".dist-info/licenses/LICENSE")]
        (said,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    assert sorted(packed) == sorted(expected)
    assert [name for name, path in expected.items() if packed[name] != path.read_bytes()] == []
    assert len(licences) == 1
    told = message_from_string(said)
    assert (told["Metadata-Version"], told["License-Expression"]) == ("2.4", "Apache-2.0")
    assert {"gpu-cuda12", "gpu-cuda13", "torch", "cluster"} <= {*told.get_all("Provides-Extra", [])}
    assert wheel.stat().st_size < MAX_BYTES


def loads_everything(programs: Path, folder: Path) -> None:
    found = json.loads(run([programs / "python", "-c", LOAD_EVERYTHING], folder))
    assert {"dgx1-v100", "aurora"} <= found["ranks"].keys()
    # One Spark is named for several.
    assert [name for name, ranks in found["ranks"].items() if ranks < 2] == ["dgx-spark"]
    assert {"aurora-projection", "aurora-projection-pcie", "aurora-chain"} <= set(found["presets"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_an_installed_copy_answers(kind: str, wheel: Path, tmp_path: Path) -> None:
    programs = install(tmp_path / "venv", *([wheel] if kind == "wheel" else ["--editable", ROOT]))
    found = json.loads(run([programs / "python", "-c", WHERE], tmp_path))
    if kind == "wheel":
        assert found["package"].startswith(str(tmp_path.resolve()))
        assert all(Path(place).is_relative_to(tmp_path.resolve()) for place in found["data"].values())
        loads_everything(programs, tmp_path)
    else:  # Its data are those of the checkout, which other tests load.
        assert found["package"] == str(ROOT / "blinksim")
        assert found["data"] == {name: str(ROOT / name) for name in DATA_FOLDERS}
    version = wheel.name.split("-")[1]
    assert version in run([programs / "blinksim", "--version"], tmp_path)
    answer = json.loads(run([programs / "blinksim", "project", "dgx1-v100", "allreduce", "256MiB", "--json"], tmp_path))
    assert answer["size_bytes"] == 256 * 2**20
    assert "2(n-1)/n" in run([programs / "blinksim", "help", "busbw"], tmp_path)
    assert answer["time_s"] > 0
