"""Ranks on several hosts: what each says of its own, and what a group of them is told."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from blinksim.gpu.jobs import group
from blinksim.gpu.jobs.group import FolderStore, Hosts, this_host


def test_ranks_of_one_host_share_it(tmp_path: Path) -> None:
    groups = [Hosts(FolderStore(tmp_path), rank, 3) for rank in range(3)]
    assert [group.several for group in groups] == [""] * 3
    assert this_host().startswith(f"{socket.gethostname()} ")


def test_ranks_of_several_hosts_all_know_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    groups = []
    for rank in range(4):
        monkeypatch.setattr(group, "this_host", lambda rank=rank: f"node{rank // 2}")
        groups.append(Hosts(FolderStore(tmp_path), rank, 4))
    assert {group.several for group in groups} == {"the ranks are on 2 hosts, and schedules run on one"}


def test_hosts_of_one_name_differ_by_when_they_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    boot = tmp_path / "boot_id"
    monkeypatch.setattr(group, "_BOOT", boot)
    monkeypatch.setattr(socket, "gethostname", lambda: "clone")
    said = {this_host()}
    for text in ("aaaa\n", "bbbb\n"):
        boot.write_text(text)
        said.add(this_host())
    assert said == {"clone ", "clone aaaa", "clone bbbb"}
