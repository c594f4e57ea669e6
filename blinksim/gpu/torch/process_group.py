"""Collectives of torch.distributed as calls of a `blinksim.gpu.jobs.group.Group`.

As with NCCL, calls are queued on the current stream, or with ``async_op`` on the group's own stream behind
its earlier calls, and `wait` makes the current stream wait for them. The memory of a group is allocated at
its first call. The environment sets the groups of a job, and must be the same on all ranks:

========================  =====================================================================================
``BLINKSIM_PLAN``         a file of rules: which schedule for which collective and size; or ``predict``, for
                          rules by a model of this machine (default: built-in rules)
``BLINKSIM_BUFFER``       the memory that a group allocates on each GPU, such as ``256MiB`` (default: 193 MiB)
``BLINKSIM_TIMEOUT``      seconds that a rank waits for another before the group fails (default: 10)
``BLINKSIM_BLOCKS``       thread blocks of a launch, at most (default: 128, or one per processor of the GPU)
``BLINKSIM_BLOCKING``     1: ``wait`` returns when the data are there, or raises (default: it orders streams only)
``BLINKSIM_LOG``          1: rank 0 says on standard error what runs, once for every kind of call (default: off)
========================  =====================================================================================
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property, partial, wraps
from itertools import count
from types import FunctionType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import AllgatherOptions, _world

from blinksim import machines
from blinksim.errors import InputError
from blinksim.formats.schedule_json import read_schedule
from blinksim.gpu.jobs.backend import Backend, GpuBackend, SharedMemoryBackend
from blinksim.gpu.jobs.group import TIMEOUT_S, Group, Hosts
from blinksim.gpu.jobs.job_plan import JobPlan, Rule
from blinksim.gpu.programs.dtypes import ELEMENT_TYPES, ElementType
from blinksim.gpu.programs.of_calls import Call, Segment, call_of
from blinksim.schedule.model import ScheduleLike, as_schedule
from blinksim.schedule.verify import verify
from blinksim.textio.text_files import read_words
from blinksim.topology.shapes import one_switch
from blinksim.units import size_of

# Of the unsigned types PyTorch computes with bytes only.
_KINDS: dict[torch.dtype, ElementType] = {
    getattr(torch, name): kind for name, kind in ELEMENT_TYPES.items() if name not in ("uint32", "uint64")
}
_NAMES = {"SUM": "sum", "AVG": "sum", "PRODUCT": "prod", "MIN": "min", "MAX": "max"}
_OPS = {getattr(dist.ReduceOp, theirs): ours for theirs, ours in _NAMES.items()}


def kind_to_move(tensor: torch.Tensor) -> tuple[ElementType, int]:
    """The element type in which a tensor can be moved, and how many elements that makes: bytes, for unknown types."""
    kind = _KINDS.get(tensor.dtype)
    return (kind, tensor.numel()) if kind else (ELEMENT_TYPES["uint8"], tensor.numel() * tensor.element_size())


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy of it whose elements follow each other in memory."""
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def divide(tensor: torch.Tensor, by: int) -> None:
    """In place; whole numbers are cut off, as by NCCL."""
    tensor.div_(by, rounding_mode=None if tensor.dtype.is_floating_point else "trunc")


def as_bytes(tensor: torch.Tensor) -> Any:
    """The memory of a dense CPU tensor as a NumPy array."""
    flat = tensor.detach().view(-1)
    return flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, dtype=np.uint8)


def put_back(tensor: torch.Tensor, vector: torch.Tensor) -> None:
    """What a call left in a dense copy."""
    if vector is not tensor:
        tensor.copy_(vector)


def reduction(tensors: Sequence[torch.Tensor], op: Any) -> tuple[str, str, bool]:
    """How a schedule reduces tensors by an op of torch: why it does not, or ""; the reduction, and True for a mean."""
    if (name := next((name for known, name in _OPS.items() if op == known), None)) is None:
        return f"no schedule is run with {op}", "sum", False
    kinds = [tensor.dtype for tensor in tensors if tensor.dtype not in _KINDS]
    return f"no schedule reduces {kinds[0]}" if kinds else "", name, op == dist.ReduceOp.AVG


# What torch's profiler calls them.
_PROFILED = read_words("profile")


def listed(tensors: Sequence[torch.Tensor] | torch.Tensor) -> Sequence[torch.Tensor]:
    """As a list: the short forms of calls take a tensor alone."""
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def options_of(kind: Any, given: tuple[Any, ...], *names: str) -> Any:
    """The options of a call. given: they or, in short forms, values of the first of them, which are `names`."""
    if given and isinstance(given[0], kind):
        return given[0]
    made = kind()
    for name, value in zip(names, given, strict=False):
        if value is not None:
            setattr(made, name, value)
    return made


def uneven(call: str, lists: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> str:
    """Why a call on lists of tensors is not that of a group, or ""."""
    alike = len({(tensor.numel(), tensor.dtype) for tensor in (*lists, *others)}) == len(others) == 1
    return "" if alike else f"{call} of tensors of different sizes or types"


def unequal(wholes: Sequence[torch.Tensor], parts: Sequence[torch.Tensor], ranks: int) -> str:
    """Why the parts of an allgather or reduce_scatter do not make up its whole vectors, or ""."""
    for whole, part in zip(wholes, parts, strict=True):
        if whole.numel() != ranks * part.numel() or whole.dtype != part.dtype:
            return f"tensors of {whole.numel()} and {part.numel()} elements on {ranks} ranks"
    return ""


def untraced(made: type) -> type:
    """A class whose methods torch's compiler leaves alone: it looks into what C++ calls in a compiled step."""
    from torch._C._dynamo import eval_frame

    # Since PyTorch 2.7; before, steps of DDP cannot be compiled.
    if hasattr(eval_frame, "set_code_exec_strategy"):
        skip = eval_frame._FrameAction.SKIP
        for method in vars(made).values():
            if isinstance(method, FunctionType):
                eval_frame.set_code_exec_strategy(method.__code__, eval_frame._FrameExecStrategy(skip, skip))
    return made


# As PyTorch's own generated code asks for it; not part of its documented interface.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
# No more is a timeout.
_AT_ONCE = timedelta()


def current_stream(gpu: int) -> int:
    """The address of the current stream; the objects of `torch.cuda.current_stream` would cost microseconds."""
    return int(_raw_stream(gpu)) if _raw_stream else int(torch.cuda.current_stream(gpu).cuda_stream)


class QueuedOn:
    """What a call waits for: all that has been queued on a stream of a backend so far.

    tensors: those that the call uses. Their memory must not be used for others before the call is done. So
    they are kept until a stream waits for the call, behind which others come; if none ever does, the
    allocator is told.
    """

    def __init__(self, backend: GpuBackend, stream: Any, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors: Sequence[torch.Tensor] = tensors
        self.backend, self.stream, self.event = backend, stream, backend.mark()

    def hold_back_current_stream(self) -> None:
        """Has the current stream wait for the call."""
        self.backend.precede(self.event, current_stream(self.backend.gpu))
        self.tensors = ()

    def __del__(self) -> None:
        if not sys.is_finalizing():
            for tensor in self.tensors:
                tensor.record_stream(self.stream)
            self.backend.take_back(self.event)


@dataclass(eq=False)
class RanOn:
    """What a call on a stream of the caller's is waited for by: what comes behind it there need not wait."""

    backend: GpuBackend
    address: int

    @cached_property
    def event(self) -> Any:
        """Made when it is asked for, which few do."""
        return self.backend.mark(self.address)

    @cached_property
    def stream(self) -> Any:
        return torch.cuda.ExternalStream(self.address, torch.device("cuda", self.backend.gpu))

    def hold_back_current_stream(self) -> None:
        """Has the current stream wait for the call, if it is another."""
        if (current := current_stream(self.backend.gpu)) != self.address:
            self.backend.precede(self.event, current)


# DDP's count of the ranks that still have data is kept by C++ up to the backward pass. It does not keep its
# object of Python, without which it would wait forever.
_COUNTS: deque[GroupWork] = deque(maxlen=16)


@untraced
class GroupWork(dist.Work):
    """A call that is queued on a stream, or done.

    Waiting makes the current stream wait for it, and not the host, unless `blocking` is set or there is a
    timeout.

    results: what the call gives. queued: where it is queued; None if it is done. check: raises if the group
    has failed.
    """

    def __init__(
        self,
        results: Sequence[torch.Tensor] = (),
        queued: QueuedOn | RanOn | None = None,
        check: Callable[[], None] = lambda: None,
        blocking: bool = False,
    ) -> None:
        super().__init__()
        self.results, self.queued, self.check, self.blocking = list(results), queued, check, blocking
        self.future: Any = None
        if len(self.results) == 1 and self.results[0].numel() == 1:
            _COUNTS.append(self)

    def wait(self, timeout: timedelta = _AT_ONCE) -> bool:
        self.check()
        if (queued := self.queued) is not None:
            queued.hold_back_current_stream()
            end = time.monotonic() + timeout.total_seconds()
            while timeout > _AT_ONCE and not queued.event.done:
                if time.monotonic() > end:
                    raise dist.DistBackendError(f"caught collective operation timeout: no end after {timeout}")
                time.sleep(1e-4)
            if self.blocking:
                queued.event.synchronize()
            if self.blocking or timeout > _AT_ONCE:
                self.check()
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self.queued is None or bool(self.queued.event.done)

    def is_success(self) -> bool:
        return self.exception() is None

    def exception(self) -> Any:
        try:
            self.check()
        except Exception as error:
            return error
        return None

    def get_future(self) -> Any:
        """A future of CUDA tensors has those who wait for it wait for the stream on which it was set."""
        if self.future is None:
            stream = self.queued and self.queued.stream
            self.future = torch.futures.Future(devices=[stream.device] if stream else [])
            with torch.cuda.stream(stream) if stream else nullcontext():
                self.future.set_result(self.results)
        return self.future

    def result(self) -> list[torch.Tensor]:
        return self.results


_TYPES = dist.ProcessGroup.BackendType


class Fallback:
    """Process groups over the backends that torch has, made when first needed; why one is needed is said once.

    options: of NCCL.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta, options: Any = None) -> None:
        self.store, self.rank, self.size, self.timeout, self.options = store, rank, size, timeout, options
        self.made: dict[str, tuple[Any, Any]] = {}
        self.said: set[str] = set()
        # Where calls belong together now, and the NCCL group that has been told so.
        self.together: torch.device | None = None
        self.told: Any = None

    def group(self, device: str, why: str) -> Any:
        """The one for ``cuda`` or ``cpu``."""
        name = "NCCL" if device == "cuda" else "Gloo"
        if why not in self.said and self.rank == 0:
            warnings.warn(f"blinksim: {why}; {name} does it", stacklevel=3)
        self.said.add(why)
        if name not in self.made:
            store = dist.PrefixStore(name, self.store)
            if name == "NCCL":
                options = self.options or dist.ProcessGroupNCCL.Options()
                options._timeout = self.timeout
                backend = dist.ProcessGroupNCCL(store, self.rank, self.size, options)
            else:
                backend = dist.ProcessGroupGloo(store, self.rank, self.size, self.timeout)
            # A backend alone lacks some forms of calls in Python.
            group, kind = dist.ProcessGroup(store, self.rank, self.size), getattr(_TYPES, name.upper())
            group._set_default_backend(kind)
            group._register_backend(torch.device(device), kind, backend)
            self.made[name] = group, backend
        made = self.made[name][0]
        if name == "NCCL" and self.together is not None and self.told is None:
            made._start_coalescing(self.together)
            self.told = made
        return made

    def close(self) -> None:
        """Ends them."""
        for _, backend in self.made.values():
            end = getattr(backend, "shutdown", None) or getattr(backend, "_shutdown", None)
            if end is not None:
                end()
        self.made.clear()


# As a plan: the machine is asked when the group is made.
PREDICT = "predict"


@dataclass(frozen=True, slots=True)
class Settings:
    """The values of the variables above; plan is a path, `PREDICT`, or empty."""

    plan: str = ""
    segment: Segment = field(default_factory=Segment)
    timeout_s: float = TIMEOUT_S
    blocks: int | None = None
    blocking: bool = False
    log: bool = False

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Raises `InputError` for a value that cannot be used."""
        buffer = environment.get("BLINKSIM_BUFFER", "")
        return cls(
            environment.get("BLINKSIM_PLAN", ""),
            Segment.of(size_of(buffer)) if buffer else Segment(),
            _number(environment, "BLINKSIM_TIMEOUT", TIMEOUT_S),
            int(_number(environment, "BLINKSIM_BLOCKS", 0)) if environment.get("BLINKSIM_BLOCKS") else None,
            environment.get("BLINKSIM_BLOCKING", "0") not in ("", "0"),
            environment.get("BLINKSIM_LOG", "0") not in ("", "0"),
        )


def _number(environment: Mapping[str, str], name: str, default: float) -> float:
    text, value = environment.get(name, ""), 0.0
    with suppress(ValueError):
        value = float(text or default)
    if not 0 < value < 1e9:
        raise InputError(f"{name}={text}: give a number above 0")
    return value


Tensors = Sequence[torch.Tensor]


class Able:
    """What torch asks of the backend of a group: what it can do. The rest is the group's.

    splits: True if `torch.distributed.split_group` can split the group.
    """

    supports_time_estimate = supports_shrinking = False

    def __init__(self, group: BlinksimProcessGroup, splits: bool) -> None:
        self.group, self.supports_splitting, self.supports_coalescing = group, splits, not group.cpu
        self.options = group.fallback.options

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return False

    def eager_connect_single_device(self, device: torch.device) -> None:
        """What torch calls for ``device_id``."""
        self.group.bound_device_id = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self.group, name)


@untraced
class BlinksimProcessGroup(dist.ProcessGroup):
    """One rank of a group in which schedules run.

    Parameters
    ----------
    store : torch.distributed.Store
        Of this group alone.
    rank, size : int
        This process, and how many there are.
    timeout : timedelta
        The group fails when a rank waits longer than this, or than `Settings.timeout_s`, for another.
    cpu : bool
        Move CPU tensors through shared memory, and not CUDA tensors.
    options : torch.distributed.ProcessGroupNCCL.Options, optional
        Of NCCL, for what it does.
    """

    group_name, group_desc = "", ""

    def __init__(
        self, store: Any, rank: int, size: int, timeout: timedelta, cpu: bool = False, options: Any = None
    ) -> None:
        super().__init__(rank, size)
        self.store, self.place, self.ranks, self.timeout, self.cpu = store, rank, size, timeout, cpu
        self.settings = Settings.read()
        self.blocking = self.settings.blocking
        self.fallback = Fallback(store, rank, size, timeout, options)
        self.group: Group | None = None
        self.hosts = Hosts(dist.PrefixStore("host", store), rank, size)
        self.met = 0
        # What this rank has sent to itself and not received yet (True), or is waiting for (False).
        self.alone: dict[bool, deque[torch.Tensor]] = {True: deque(), False: deque()}
        self.device, self.gpu = torch.device("cpu"), 0
        self.stream: Any = None
        self.backend: Backend | None = None

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "blinksim"

    def _set_group_name(self, name: str) -> None:
        """torch keeps the name in its backends, of which there is none here."""
        self.group_name = name

    def _set_group_desc(self, text: str) -> None:
        self.group_desc = text

    def getGroupName(self) -> str:  # noqa: N802
        return self.group_name

    setGroupName = _set_group_name  # noqa: N815

    def _get_backend(self, device: torch.device) -> Able:
        """By the device that is bound, torch asks whether NCCL can split a communicator off this group."""
        return Able(self, splits=device.index is None or self.bound_device_id is None)

    def _set_sequence_number_for_group(self) -> None:
        """Launches are counted on the GPUs."""

    def get_group_store(self) -> Any:
        return self.store

    def split_group(
        self, ranks: Sequence[int], timeout: timedelta | None = None, opts: Any = None, **names: Any
    ) -> Any:
        """A group of some of these ranks, in this order; None on the others. names: its name and description."""
        if self.place not in ranks:
            return None
        name = names.get("group_name") or ",".join(map(str, ranks))
        store, rank = dist.PrefixStore(f"{name}/", self.store), list(ranks).index(self.place)
        part = type(self)(store, rank, len(ranks), timeout or self.timeout, self.cpu, opts)
        part.group_name, part.group_desc = name, names.get("group_desc") or ""
        return part

    # --- collectives that schedules run ---------------------------------------------------------------------------

    def allreduce(self, tensors: Tensors | torch.Tensor, *given: Any) -> Any:
        opts, tensors = options_of(dist.AllreduceOptions, given, "reduceOp"), listed(tensors)
        return self._in_place("allreduce", tensors, opts, "allreduce", tensors, opts)

    def allreduce_coalesced(self, tensors: Tensors, *given: Any) -> Any:
        opts = options_of(dist.AllreduceCoalescedOptions, given)
        return self._in_place("allreduce", tensors, opts, "allreduce_coalesced", tensors, opts)

    def reduce(self, tensors: Tensors | torch.Tensor, *given: Any) -> Any:
        opts, tensors = options_of(dist.ReduceOptions, given, "rootRank", "reduceOp"), listed(tensors)
        return self._in_place("reduce", tensors, opts, "reduce", tensors, opts, root=opts.rootRank)

    def broadcast(self, tensors: Tensors | torch.Tensor, *given: Any) -> Any:
        opts, tensors = options_of(dist.BroadcastOptions, given, "rootRank"), listed(tensors)
        return self._in_place("broadcast", tensors, opts, "broadcast", tensors, opts, root=opts.rootRank)

    def allgather(self, output_lists: Any, inputs: Tensors | torch.Tensor, opts: Any = None) -> Any:
        if isinstance(inputs, torch.Tensor):
            output_lists, inputs = [output_lists], [inputs]
        flat = [tensor for tensors in output_lists for tensor in tensors]
        return self._gathered("allgather", uneven("an allgather", flat, inputs), output_lists, inputs, flat, opts)

    def allgather_into_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        why = unequal(outputs, inputs, self.ranks)
        return self._gathered("allgather_into_tensor_coalesced", why, outputs, inputs, outputs, opts)

    def _allgather_base(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Any:
        return self.allgather_into_tensor_coalesced([output], [given], opts)

    def reduce_scatter(self, outputs: Tensors | torch.Tensor, input_lists: Any, *given: Any) -> Any:
        opts = options_of(dist.ReduceScatterOptions, given, "reduceOp")
        if isinstance(outputs, torch.Tensor):
            outputs, input_lists = [outputs], [input_lists]
        flat = [tensor for tensors in input_lists for tensor in tensors]
        why = uneven("a reduce_scatter", flat, outputs)
        return self._scattered("reduce_scatter", why, outputs, input_lists, flat, opts)

    def reduce_scatter_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        why = unequal(inputs, outputs, self.ranks)
        return self._scattered("reduce_scatter_tensor_coalesced", why, outputs, inputs, inputs, opts)

    def _reduce_scatter_base(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Any:
        return self.reduce_scatter_tensor_coalesced([output], [given], opts)

    def barrier(self, opts: Any = None) -> Any:
        ids = getattr(opts, "device_ids", None) or ()
        own = self.device if self.cpu or self.group else self.bound_device_id
        device = torch.device("cuda", ids[0]) if ids else own
        if device is None:
            # Which GPU is this rank's, its first call will say. What has been queued so far must end here all
            # the same.
            torch.cuda.synchronize()
            self.met += 1
            self.store.set(f"met/{self.met}/{self.place}", "here")
            for rank in range(self.ranks):
                self.store.get(f"met/{self.met}/{rank}")
            return GroupWork()
        token = torch.zeros(1, device=device)
        work = self._in_place("allreduce", [token], dist.AllreduceOptions(), "barrier", opts)
        if isinstance(work, GroupWork):
            work.blocking = True
        return work

    # Newer names of the same.
    all_gather_single, reduce_scatter_single = _allgather_base, _reduce_scatter_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    # --- what goes to NCCL or Gloo --------------------------------------------------------------------------------

    def _pass_on(self, name: str, tensor: torch.Tensor, *arguments: Any) -> Any:
        other = self.fallback.group(tensor.device.type, f"no schedule is run for {name}")
        return getattr(other, name)(*arguments)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._pass_on("allgather_coalesced", inputs[0], outputs, inputs, opts or AllgatherOptions())

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._pass_on("alltoall", inputs[0], outputs, inputs, opts or dist.AllToAllOptions())

    def alltoall_base(self, output: Any, given: Any, into: Any, out_of: Any, opts: Any = None) -> Any:
        return self._pass_on("alltoall_base", given, output, given, into, out_of, opts or dist.AllToAllOptions())

    all_to_all_single = alltoall_base

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._pass_on("gather", inputs[0], outputs, inputs, opts or dist.GatherOptions())

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._pass_on("scatter", outputs[0], outputs, inputs, opts or dist.ScatterOptions())

    def _to_itself(self, tensors: Tensors, sent: bool) -> GroupWork:
        """What a rank sends to itself is copied once it is both sent and asked for, in the order of each."""
        if self.alone[not sent]:
            other = self.alone[not sent].popleft()
            source, target = (tensors[0], other) if sent else (other, tensors[0])
            target.copy_(source)
        else:
            self.alone[sent].append(tensors[0])
        return GroupWork()

    def send(self, tensors: Any, to: int, tag: int = 0) -> Any:
        if to == self.place:
            return self._to_itself(tensors, True)
        return self._pass_on("send", tensors[0], tensors, to, tag)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Any:
        if source == self.place:
            return self._to_itself(tensors, False)
        return self._pass_on("recv", tensors[0], tensors, source, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        return self._pass_on("recv_anysource", tensors[0], tensors, tag)

    def _start_coalescing(self, device: Any) -> None:
        """Calls of schedules are queued one after another anyway."""
        self.fallback.together = device

    def _end_coalescing(self, device: Any) -> Any:
        told, self.fallback.told, self.fallback.together = self.fallback.told, None, None
        if told is not None:
            return told._end_coalescing(device)
        if self.group is None:
            return GroupWork()
        return self._do([torch.zeros(1, device=device)], "", lambda group: None, [], None, False, "")

    # --- the end --------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Frees the memory once all ranks are done with it."""
        group, self.group = self.group, None
        if group is not None:
            group.close()
        self.fallback.close()

    abort = shutdown

    # --- how ------------------------------------------------------------------------------------------------------

    def _in_place(self, collective: str, tensors: Tensors, opts: Any, *elsewhere: Any, root: int = 0) -> Any:
        """An allreduce, reduce or broadcast."""
        reduces = collective != "broadcast"
        why, name, average = reduction(tensors, opts.reduceOp) if reduces else ("", "sum", False)

        def work(group: Group) -> None:
            for tensor in tensors:
                (kind, count), vector = kind_to_move(tensor), dense(tensor)
                self._run(group, call_of(collective, count, kind, name, root), vector, vector)
                if average and (collective == "allreduce" or root == self.place):
                    divide(vector, self.ranks)
                put_back(tensor, vector)

        return self._do(tensors, why, work, tensors, opts, average, *elsewhere)

    def _gathered(self, form: str, why: str, outputs: Any, inputs: Tensors, flat: Tensors, opts: Any) -> Any:
        """An allgather of each of `inputs` into a tensor of `outputs`, or a list. form: torch's name."""
        opts, lists = opts or AllgatherOptions(), form == "allgather"

        def work(group: Group) -> None:
            for output, given in zip(outputs, inputs, strict=True):
                kind, count = kind_to_move(given)
                joint = given.new_empty(self.ranks * given.numel()) if lists else dense(output)
                self._run(group, call_of("allgather", count * self.ranks, kind), dense(given), joint)
                if lists:
                    for one, part in zip(output, joint.chunk(self.ranks), strict=True):
                        one.copy_(part.view(one.shape))
                else:
                    put_back(output, joint)

        return self._do((*inputs, *flat), why, work, flat, opts, lists, form, outputs, inputs, opts)

    def _scattered(self, form: str, why: str, outputs: Tensors, inputs: Sequence[Any], flat: Tensors, opts: Any) -> Any:
        """A reduce-scatter into each of `outputs` from a tensor of `inputs`, or a list of them. form: torch's name."""
        opts = opts or dist.ReduceScatterOptions()
        unknown, name, average = reduction(outputs, opts.reduceOp)
        lists = form == "reduce_scatter"

        def work(group: Group) -> None:
            for output, given in zip(outputs, inputs, strict=True):
                kind, _ = kind_to_move(output)
                source = torch.cat([tensor.reshape(-1) for tensor in given]) if lists else dense(given)
                target = dense(output)
                self._run(group, call_of("reducescatter", source.numel(), kind, name), source, target)
                if average:
                    divide(target, self.ranks)
                put_back(output, target)

        computes = lists or average
        return self._do((*flat, *outputs), why or unknown, work, outputs, opts, computes, form, outputs, inputs, opts)

    def _run(self, group: Group, call: Call, source: torch.Tensor, target: torch.Tensor) -> None:
        if self.cpu:
            group.run(call, as_bytes(source), as_bytes(target))
        else:
            group.run(call, source.data_ptr(), target.data_ptr())

    def _do(
        self,
        tensors: Tensors,
        why: str,
        work: Callable[[Group], None],
        results: Tensors,
        opts: Any,
        computes: bool,
        name: str,
        *arguments: Any,
    ) -> Any:
        """Queues `work`, or has a call of torch do it if `why` says so or if the tensors are not ours.

        tensors: all that take part. results: those that the call gives. opts: of the call; who does not wait
        for it at once says so there. computes: True if torch has a part in it. name, arguments: of the call.
        """
        first, plain = tensors[0], not computes
        if first.is_cuda == self.cpu:
            why = f"tensors on {first.device.type} are not moved by schedules here"
        for tensor in tensors:
            if tensor.layout is not torch.strided:
                why = "no schedule moves sparse tensors"
            elif plain and not tensor.is_contiguous():
                plain = False
        if not why and not first.numel():
            return GroupWork(results)
        why = why or "a group of one rank needs no schedule" * (self.ranks == 1) or self.hosts.several
        if why:
            return getattr(self.fallback.group(first.device.type, why), name)(*arguments) if name else None
        group = self._group_on(first.device)
        if torch.autograd._profiler_enabled():
            event = f"{_world.pg_map.get(self, ['blinksim'])[0]}:{_PROFILED.get(name, name)}"
            work = torch.autograd.profiler.record_function(event)(work)
        if self.cpu:
            with torch.no_grad():
                work(group)
            return GroupWork(results, check=group.check)
        backend, current = self.backend, current_stream(self.gpu)
        assert isinstance(backend, GpuBackend)
        waited = not getattr(opts, "asyncOp", True)
        stream = None
        if waited:
            backend.go_on(current)
        else:
            stream = self.stream
            backend.follow(current)
        if plain:
            work(group)  # launches alone: torch has no part in them
        else:
            with torch.cuda.stream(stream), torch.no_grad():
                work(group)
        queued: QueuedOn | RanOn = RanOn(backend, current) if waited else QueuedOn(backend, stream, tensors)
        return GroupWork(results, queued, group.check, self.blocking)

    def _group_on(self, device: torch.device) -> Group:
        """The group, made with the first call."""
        if self.group is not None:
            if device != self.device:
                raise InputError(f"this group moves tensors on {self.device}, and one is on {device}")
            return self.group
        settings = self.settings
        if settings.plan == PREDICT:
            places = dist.PrefixStore("gpu", self.store)
            places.set(str(self.place), str(self.place if device.index is None else device.index))
            gpus = [int(places.get(str(rank))) for rank in range(self.ranks)]
            plan = JobPlan.predicted(machines.this_machine().select(gpus))
        elif settings.plan:
            plan = JobPlan.read(one_switch(self.ranks).select(), settings.plan)
        else:
            plan = JobPlan.for_switch(self.ranks)
        return self.join(device, plan, dist.PrefixStore("group", self.store))

    def join(self, device: torch.device, plan: JobPlan, store: Any, at_once: int = 2) -> Group:
        """Makes the group, as all its ranks and relays do. at_once: groups with launches on a GPU at once."""
        settings = self.settings
        backend: Backend = SharedMemoryBackend()
        if not self.cpu:
            self.stream = torch.cuda.Stream(device, priority=-1)
            backend = GpuBackend(device.index, self.stream.cuda_stream, settings.blocks)
            backend.blocks = max(1, 2 * backend.blocks // max(2, at_once))
        timeout_s = min(settings.timeout_s, self.timeout.total_seconds())
        report = partial(print, "blinksim:", file=sys.stderr, flush=True) if settings.log and self.place == 0 else None
        self.group = Group(store, self.place, plan, backend, settings.segment, timeout_s, report)
        self.device, self.gpu, self.backend = device, device.index or 0, backend
        return self.group


# Calls of `new_groups`, which all ranks of a job make in the same order; and more than any group waits.
_MADE, _LONG = count(), timedelta(days=1)


def new_groups(
    schedule: ScheduleLike | str | os.PathLike[str],
    *,
    device: torch.device | str | None = None,
    lane_blocks: int | None = None,
) -> list[Any]:
    """Make process groups whose schedules share the links of a machine, and forward for each other.

    Every rank of the job calls it. Rank r runs as the r-th member of the schedule's machine. Where a schedule
    goes through a GPU whose rank is not in the group, that rank's process does its part there, on a thread
    and a stream of its own: no rank calls a collective of a group that it is not in.

    Parameters
    ----------
    schedule : Schedule, Together, str or path
        Of several groups, as `blinksim.together` finds them or ``blinksim synth --group`` writes them; the
        same on all ranks.
    device : torch.device, optional
        This rank's GPU; default: the current one. ``"cpu"`` moves CPU tensors through shared memory.
    lane_blocks : int, optional
        So many thread blocks for every lane of the schedule's machine, and no other way out of a GPU.
        Default: as many as are quickest.

    Returns
    -------
    list
        As of `torch.distributed.new_group`, for every group of the schedule: a process group, or
        ``GroupMember.NON_GROUP_MEMBER`` where this rank is not in it.

    Raises
    ------
    InputError
        For a schedule that is wrong, or for other than one rank for each of its GPUs on one host.
    MissingError
        Without enough memory, or access to that of another GPU.
    """
    found = read_schedule(schedule) if isinstance(schedule, str | os.PathLike) else as_schedule(schedule)
    rank, ranks, members = dist.get_rank(), dist.get_world_size(), found.topology.members
    if not found.groups or len(members) != ranks:
        wanted = f"give the schedules of several groups that share {ranks} GPUs, one for each rank of the job"
        raise InputError(f"{found.does} on {len(members)} GPUs: {wanted}")
    if any([*one.members] != [name for name in members if name in one.members] for one in found.groups):
        raise InputError("torch counts the ranks of a group in rising order; name the members of each group so")
    if not (verdict := verify(found)).ok:
        raise InputError(f"{found.does}: {verdict.reasons[0]}")
    store = dist.PrefixStore(f"blinksim groups {next(_MADE)}", dist.distributed_c10d._get_default_store())
    if several := Hosts(dist.PrefixStore("host", store), rank, ranks).several:
        raise InputError(several)
    chosen = torch.device("cuda", torch.cuda.current_device()) if device is None else torch.device(device)
    made, cpu = list[Any](), chosen.type == "cpu"
    backend, nothing = ("cpu:blinksim_numpy", np.empty(0, np.uint8)) if cpu else ("cuda:blinksim", 0)
    for number, one in enumerate(found.groups):
        rule = Rule(one.collective.name, None, found.alone(number), "simple", lane_blocks)
        plan = JobPlan.for_switch(len(one.members)).with_rules([rule], f"the schedule of {one}")
        places = [members.index(name) for name in (*one.members, *plan.relays)]
        made.append(dist.new_group(places[: plan.ranks], backend=backend))
        if rank not in places:
            continue
        own, place = dist.PrefixStore(f"{number}", store), places.index(rank)
        door = made[-1] if place < plan.ranks else BlinksimProcessGroup(own, place, len(places), _LONG, cpu)
        group = door.join(chosen, plan, own, len(found.groups))
        # A process ends once those for which it relays have, group by group, everywhere the last one first.
        end = group.dismiss
        if place >= plan.ranks:
            thread = threading.Thread(target=group.relay, args=(nothing,), daemon=True)
            thread.start()
            end = thread.join
        atexit.register(end)
    return made


def create(given: Any, options: Any, cpu: bool) -> BlinksimProcessGroup:
    """What torch calls for a backend. given: its DistributedBackendOptions. options: ``pg_options``."""
    return BlinksimProcessGroup(given.store, given.group_rank, given.group_size, given.timeout, cpu, options)


def batched(alone: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.distributed.batch_isend_irecv``, where calls of a group of ours that go to NCCL go there together."""

    @wraps(alone)
    def batch_isend_irecv(p2p_op_list: Sequence[Any]) -> Any:
        first = p2p_op_list[0] if p2p_op_list else None
        group = getattr(first, "group", None) or dist.group.WORLD
        if not isinstance(first, dist.P2POp) or not isinstance(group, BlinksimProcessGroup) or group.cpu:
            return alone(p2p_op_list)
        device = first.tensor.device
        group._start_coalescing(device)
        try:
            alone(p2p_op_list)
        finally:
            work = group._end_coalescing(device)
        return [work]

    return batch_isend_irecv
