"""Schedules in the wave form of pipelines: every chunk in pieces, each a step behind the one before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from blinksim.schedule.model import Schedule


def cut(schedule: Schedule, pieces: int) -> Schedule:
    """`schedule` in steps form: piece p of a chunk moves p steps after the chunk's own send."""
    piece = np.tile(np.arange(pieces, dtype=np.int32), schedule.sends)
    step = np.repeat(schedule.step, pieces) + piece
    order = np.argsort(step, kind="stable")
    which = (order // pieces).astype(np.int32)
    parts: dict[str, Any] = {key: np.repeat(getattr(schedule, key), pieces) for key in ("origin", "target")}
    parts |= {key: getattr(schedule, key)[which] for key in ("src", "dst", "op", "route", "channel")}
    parts |= {"chunk": schedule.chunk[which] * np.int32(pieces) + piece[order], "step": step[order]}
    shares = np.repeat(schedule.share_num, pieces)
    return replace(schedule, form="steps", share_num=shares, share_den=schedule.share_den * pieces, **parts)
