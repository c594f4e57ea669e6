"""How the processes of a group find each other: a store of keys, as torch has one, or files in a folder."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from blinksim.errors import InputError
from blinksim.textio import text_files


class Store(Protocol):
    """The part of torch.distributed.Store that a group needs; both raise if a key does not come in time."""

    def set(self, key: str, value: str, /) -> object: ...

    def get(self, key: str, /) -> bytes:
        """Waits for the key."""

    def check(self, keys: list[str], /) -> bool:
        """True if all of them are set."""


class FolderStore:
    """Keys as files in a folder that all processes see.

    Parameters
    ----------
    folder : path
        Made if it is missing; one for every run.
    timeout_s : float
        How long `get` waits. It then raises `TimeoutError`.

    Examples
    --------
    >>> import tempfile
    >>> from blinksim.gpu.jobs.rendezvous import FolderStore
    >>> store = FolderStore(tempfile.mkdtemp(), timeout_s=1)
    >>> store.set("answer", "42")
    >>> store.get("answer")
    b'42'
    """

    def __init__(self, folder: str | os.PathLike[str], timeout_s: float = 60.0) -> None:
        if not timeout_s > 0:
            raise InputError(f"timeout_s is more than 0, not {timeout_s}")
        self.folder, self.timeout_s = Path(folder), timeout_s
        self.folder.mkdir(parents=True, exist_ok=True)

    def set(self, key: str, value: str, /) -> None:
        path = self._path(key)
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_text(value, encoding="utf-8")
        part.replace(path)  # seen as a whole or not at all

    def get(self, key: str, /) -> bytes:
        path, end = self._path(key), time.monotonic() + self.timeout_s
        while True:
            if path.exists():
                return text_files.read_bytes(path, text_files.MIB)
            if time.monotonic() > end:
                raise TimeoutError(f"nobody has set {key} in {self.folder} for {self.timeout_s:g} s")
            time.sleep(0.002)

    def check(self, keys: list[str], /) -> bool:
        return all(self._path(key).exists() for key in keys)

    def _path(self, key: str) -> Path:
        return self.folder / quote(key, safe="")


class Section:
    """The keys of a store that begin with a prefix."""

    def __init__(self, store: Store, prefix: str) -> None:
        self.store, self.prefix = store, prefix

    def set(self, key: str, value: str, /) -> None:
        self.store.set(f"{self.prefix}/{key}", value)

    def get(self, key: str, /) -> bytes:
        return self.store.get(f"{self.prefix}/{key}")

    def check(self, keys: list[str], /) -> bool:
        return self.store.check([f"{self.prefix}/{key}" for key in keys])
