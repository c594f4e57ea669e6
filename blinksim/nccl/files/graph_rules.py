"""NCCL's treatment of a graph file: whether it accepts, ignores, rejects, misreads or crashes on it.

NCCL reads its XML byte by byte, more lenient and more fragile than XML: a checker that used a real XML parser
would pass files that NCCL cannot load and refuse files that it loads. The rules are those of NCCL 2.28.3,
graph/xml.cc, with what differs between releases in `Release`: no prolog, no tabs, attributes on one line with
one blank before each, comments between elements, no text, no entities, limits on counts.

NCCL checks little: a chain that misses a GPU passes and hangs later, a list that is too short is filled with
rank 0. So the file is carried through the same stages here: reading, channel by channel into the arrays of
graph/search.cc, then the rings and trees of graph/connect.cc and trees.cc for every rank of a node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise, takewhile
from typing import ClassVar

from blinksim.errors import InputError
from blinksim.nccl.families import FAMILY_NAMES, FAMILY_PATTERNS, NVLS, RING, TREE, Pattern, file_path_types
from blinksim.results import count
from blinksim.textio.text_files import read_words

SYSTEM_ERROR, INTERNAL_ERROR, INVALID_USAGE = 2, 3, 5
_LONGEST = 255
_MOST_ATTRIBUTES = 16
_VERSION = re.compile(r"2\.([0-9]{1,2})(?:\.[0-9]{1,2})?")
_OLDEST, _NEWEST = 8, 30


class LoadError(Exception):
    """NCCL refuses the file: its result code, and the warning that stands in its log."""

    def __init__(self, code: int, log: str) -> None:
        super().__init__(log)
        self.code, self.log = code, log


class CrashError(Exception):
    """NCCL's process dies; the signal that ends it."""


@dataclass(frozen=True, slots=True)
class Release:
    """What a release of NCCL 2 determines: limits, spellings, and how graph files number GPUs."""

    minor: int

    @classmethod
    def parse(cls, text: str) -> Release:
        """The release called ``2.28.3`` or ``2.28``; raises `InputError` for those whose rules are not known here."""
        match = _VERSION.fullmatch(text.strip())
        if match is None or not _OLDEST <= int(match[1]) <= _NEWEST:
            raise InputError(f"NCCL {text[:20]!r}: the rules of releases 2.{_OLDEST} to 2.{_NEWEST} are known")
        return cls(int(match[1]))

    @property
    def most(self) -> tuple[int, int]:
        """How many elements a file may have, and how many of them one element."""
        return (1024, 32) if self.minor <= 20 else (4096, 128) if self.minor <= 29 else (65536, 640)

    @property
    def most_channels(self) -> int:
        """Channels of a communicator; a graph has room for half of them, the rest are their copies."""
        return 32 if self.minor <= 24 else 64

    @property
    def hexadecimal(self) -> bool:
        """True if ``dev="10"`` is GPU 16."""
        return self.minor >= 21

    @property
    def reads_ranks(self) -> bool:
        """True if a GPU may be named by its rank, which then wins over its number."""
        return self.minor >= 30


@dataclass
class Node:
    """One element as NCCL keeps it."""

    name: str
    line: int
    attributes: dict[str, str] = field(default_factory=dict)
    children: list[Node] = field(default_factory=list)

    def text(self, name: str) -> str:
        """The attribute `name`; without it NCCL gives up."""
        if name not in self.attributes:
            raise LoadError(INTERNAL_ERROR, f"Attribute {name} of node {self.name} not found")
        return self.attributes[name]

    def integer(self, name: str, base: int = 0) -> int:
        return c_integer(self.text(name), base)

    def decimal(self, name: str) -> float:
        """A text as C's strtof reads it, without its special values."""
        match = re.match(r"\s*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", self.text(name))
        return float(match[0]) if match else 0.0


def c_integer(text: str, base: int = 0) -> int:
    """A text as C's strtol reads it in base 16 or 0: the longest number at its start, 0 if there is none."""
    pattern = "(?:0[xX])?[0-9a-fA-F]+" if base else "0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*"
    if (match := re.match(rf"[ \t\n\v\f\r]*([+-]?)({pattern})", text)) is None:
        return 0
    # Python writes octal numbers with 0o.
    return int(match[1] + (match[2] if base else re.sub("^0(?=[0-7])", "0o", match[2])), base)


@dataclass(eq=False)
class _Reader:
    """The characters of a file, taken one after another as NCCL takes them."""

    # What NCCL knows inside each element; the name of the outermost is empty.
    places: ClassVar = {"": ("graphs",), "graphs": ("graph",), "graph": ("channel",), "channel": ("net", "gpu")}

    text: str
    release: Release
    at: int = 0
    line: int = 1
    counted: int = 0
    log: list[str] = field(default_factory=list)

    def next(self) -> str:
        if self.at >= len(self.text):
            raise LoadError(INTERNAL_ERROR, "XML Parse : Unexpected EOF")
        self.at += 1
        return self.text[self.at - 1]

    def token(self, *, with_value: bool) -> tuple[str, str, str]:
        """(name, value, the character that ended it)."""
        some = self.text[self.at : self.at + _LONGEST]
        name = "".join(takewhile(lambda char: char not in " >/\n\r=", some))
        if len(name) == _LONGEST:
            raise LoadError(INTERNAL_ERROR, f"Error : name {name[:20]}… too long (max {_LONGEST})")
        self.at += len(name)
        if (char := self.next()) != "=":
            return name, "", char
        if not with_value:
            raise LoadError(INTERNAL_ERROR, f"XML Parse : Unexpected value with name {name[:80]}")
        quote = self.next()
        if quote != '"' and not (quote == "'" and self.release.minor >= 27):
            raise LoadError(INTERNAL_ERROR, "XML Parse : Expected (double) quote.")
        end = self.text.find(quote, self.at)
        if end < 0:
            raise LoadError(INTERNAL_ERROR, "XML Parse : Unexpected EOF")
        if len(value := self.text[self.at : end]) >= _LONGEST:
            raise LoadError(INTERNAL_ERROR, f"Error : value {value[:20]}… too long (max {_LONGEST})")
        self.at = end + 1
        return name, value, self.next()

    def node(self) -> tuple[str, Node | None]:
        """(open, close, single or end, the element)."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in " \n\r":
                self.at += 1
            if self.at >= len(self.text):
                return "end", None
            self.line += self.text.count("\n", self.counted, self.at)
            self.counted = self.at
            if (char := self.next()) != "<":
                raise LoadError(INTERNAL_ERROR, f"XML Parse error : expecting '<', got '{char}'")
            name, _, last = self.token(with_value=False)
            if not name.startswith("!--"):
                break
            # "-->" may begin in the name itself.
            end = self.text.find("-->", self.at - 1 - len(name[3:]))
            if end < 0:
                raise LoadError(INTERNAL_ERROR, "XML Parse error : unterminated comment")
            self.at = end + 3
        if not name and last == "/":
            name, _, last = self.token(with_value=False)
            if last != ">":
                raise LoadError(INTERNAL_ERROR, f"XML Parse error : unexpected trailing {last} in closing tag {name}")
            return "close", Node(name, self.line)
        node, count, kind = Node(name, self.line), 0, "open"
        while last == " ":
            key, value, last = self.token(with_value=True)
            if count < _MOST_ATTRIBUTES:
                # A doubled blank is an attribute without a name, and the first of two with one name counts.
                node.attributes.setdefault(key, value)
                count += 1
            else:
                self.log.append(f"XML Parse : Ignoring extra attributes (max {_MOST_ATTRIBUTES})")
        if last == "/":
            kind = "single"
            last = self.token(with_value=False)[2]
        if last != ">":
            raise LoadError(INTERNAL_ERROR, f"XML Parse : expected >, got '{last}'")
        return kind, node

    def roots(self) -> list[Node]:
        """The outermost elements with everything inside them that NCCL knows."""
        root, elements = Node("", 1), 0
        most, inside = self.release.most
        # A stack instead of recursion, so that deep files end in a message.
        stack: list[tuple[Node, tuple[str, ...], bool]] = [(root, self.places[""], False)]
        while True:
            head, known, ignored = stack[-1]
            if elements >= most:
                raise LoadError(INTERNAL_ERROR, f"Error : XML parser is limited to {most} nodes")
            kind, node = self.node()
            if node is None:
                if head is not root:
                    raise LoadError(INTERNAL_ERROR, f"XML Parse : unterminated {head.name}")
                return root.children
            if head is not root and kind == "close":
                # Inside an element that NCCL does not know, names of closing tags are not compared.
                if not ignored and node.name != head.name:
                    raise LoadError(INTERNAL_ERROR, f"XML Mismatch : {head.name} / {node.name}")
                stack.pop()
                continue
            ignored = node.name not in known
            if not ignored:
                if head is not root and len(head.children) == inside:
                    raise LoadError(INTERNAL_ERROR, f"Error : XML parser is limited to {inside} subnodes")
                head.children.append(node)
                elements += 1
                if head is root and node.integer("version") != 1:
                    raise LoadError(INVALID_USAGE, f"XML Graph has wrong version {node.integer('version')}, 1 needed")
            elif known:
                self.log.append(f"Ignoring element {node.name}")
            if kind == "open":
                stack.append((node, () if ignored else self.places.get(node.name, ()), ignored))


def load_graphs(text: str, release: Release) -> tuple[Node, list[str]]:
    """The outermost ``<graphs>`` of a graph file as NCCL loads it, and the notes in its log.

    A file without any is an empty one. Raises `LoadError` where NCCL gives up.
    """
    reader = _Reader(text, release)
    loaded = reader.roots()
    return (loaded[0] if loaded else Node("graphs", 1)), reader.log


DEFAULT_RELEASE = "2.28.3"
_DEEPEST_HEAP = 64


@dataclass(frozen=True, slots=True)
class Communicator:
    """The communicator, as NCCL sees it on one node.

    gpus: the numbers (NVML, ``dev``) of a node's GPUs in rank order; every node has the same.
    sm: compute capability times ten. nvls: True if the node has an NVSwitch with multicast.
    linked: pairs of GPU numbers with a direct NVLink or one over a switch; None where that is not known.
    nets: the numbers of the network devices; None if not known.
    """

    gpus: tuple[int, ...]
    nodes: int = 1
    sm: int = 70
    nvls: bool = False
    linked: frozenset[tuple[int, int]] | None = None
    nets: frozenset[int] | None = None

    def __post_init__(self) -> None:
        if not self.gpus or len(set(self.gpus)) != len(self.gpus):
            raise InputError("a communicator needs at least one GPU, and each only once")


@dataclass(frozen=True, slots=True)
class LoadedGraph:
    """One graph in NCCL's memory after loading, mistakes of the file included.

    That need not make sense, unlike a `blinksim.nccl.files.graph_file.Graph`: speeds may be zero, infinite or
    negative, and GPUs missing, repeated or unknown.

    in_force: True if NCCL takes the graph instead of searching. elements: channel elements read.
    channels: GPU numbers of each channel (-1: a rank that no GPU has).
    speeds: GB/s of a channel, inside and between nodes. types: the path types that NCCL understood.
    """

    in_force: bool
    elements: int
    channels: tuple[tuple[int, ...], ...] = ()
    speeds: tuple[float, float] = (0.0, 0.0)
    types: tuple[str, str] = ("LOC", "LOC")
    pattern: int = 0


@dataclass(frozen=True, slots=True)
class Judgement:
    """The fate of a graph file.

    verdict: ``used``, ``ignored``, ``corrupt_tree``, ``ring_error``, ``error`` or ``crash``. reason: why, in words.
    log: NCCL's own line, if it prints one.
    graphs: by name (ring, tree, nvls), as far as loading came.
    channels: those of the communicator; None if NCCL's search decides or no communicator starts.
    accidents: where NCCL misreads the file.
    """

    verdict: str
    reason: str
    log: str = ""
    graphs: dict[str, LoadedGraph] = field(default_factory=dict)
    channels: int | None = None
    accidents: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if the file is in force and means what it says."""
        return self.verdict == "used" and not self.accidents


_CURES = read_words("cure")


def judge(text: str, comm: Communicator, release: Release | None = None) -> Judgement:
    """What NCCL of that release does with a graph file of this text for a communicator."""
    release = release or Release.parse(DEFAULT_RELEASE)
    graphs: dict[str, LoadedGraph] = {}
    accidents: list[str] = []
    notes: list[str] = []
    wanted = [RING, TREE]
    # Release 2.28 wants three GPUs for a multicast, 2.30 two.
    if comm.nvls and comm.sm >= 90 and len(comm.gpus) >= (2 if release.minor >= 30 else 3):
        wanted.append(NVLS)
    stage = ""
    try:
        for number in wanted:
            stage = FAMILY_NAMES[number]
            root, notes = load_graphs(text, release)
            graphs[stage] = _load(root, number, comm, release, accidents, notes)
        return _build(graphs, comm, release, accidents, "; ".join(dict.fromkeys(notes)))
    except LoadError as error:
        reason = f"NCCL cannot load the file (result {error.code}, at the {stage} graph), so no communicator starts"
        cure = next((f" ({words})" for part, words in _CURES.items() if part in error.log), "")
        return Judgement("error", f"{reason}: {error.log}{cure}", error.log, graphs)
    except CrashError as error:
        return Judgement("crash", str(error), str(error).split(":")[0], graphs)


# --- loading ------------------------------------------------------------------------------------------------------


def _load(
    root: Node, number: int, comm: Communicator, release: Release, accidents: list[str], log: list[str]
) -> LoadedGraph:
    """The graph `number` as loading leaves it; the last one with that id wins."""
    loaded: LoadedGraph | None = None
    slots: dict[int, int] = {}
    local, ranks = len(comm.gpus), range(len(comm.gpus))
    for graph in root.children:
        if graph.integer("id") != number:
            continue
        graph.integer("crossnic")
        if loaded is not None:
            accidents.append(f"line {graph.line}: a second graph with id {number}; it replaces the first")
        pattern, count = graph.integer("pattern"), graph.integer("nchannels")
        speeds = graph.decimal("speedintra"), graph.decimal("speedinter")
        types = _path_type(graph, "typeintra", release, log), _path_type(graph, "typeinter", release, log)
        graph.integer("samechannels")
        for position, channel in enumerate(graph.children):
            place = local * position
            for child in channel.children:
                dev = _number(child, release)
                if child.name != "gpu":
                    continue
                if release.reads_ranks and "rank" in child.attributes:
                    rank = c_integer(child.attributes["rank"])
                elif dev in comm.gpus:
                    rank = comm.gpus.index(dev)
                else:
                    raise LoadError(SYSTEM_ERROR, f"XML Import Channel : dev {dev} not found.")
                # More GPUs than there are run into the next channel, which then overwrites them.
                slots[place] = rank
                place += 1
        order = [slots.get(place, 0) for place in range(local * max(0, min(count, 4 * _DEEPEST_HEAP)))]
        gpus = [comm.gpus[rank] if rank in ranks else -1 for rank in order]
        channels = tuple(tuple(gpus[first : first + local]) for first in range(0, len(gpus), local))
        loaded = LoadedGraph(count > 0, len(graph.children), channels, speeds, types, pattern)
        if count > 0:
            accidents += _accidents(graph, number, count, comm, release)
    return loaded or LoadedGraph(False, 0)


def _path_type(graph: Node, name: str, release: Release, log: list[str]) -> str:
    if (text := graph.attributes.get(name)) is None:
        raise CrashError(f"SIGSEGV: the process dies because <graph> in line {graph.line} has no attribute {name}")
    for known in file_path_types(release.minor):
        if text.startswith(known):
            return known
    log.append(f"KV Convert to int : could not find value of '{text}' in dictionary, falling back to 0")
    return "LOC"


def _number(device: Node, release: Release) -> int:
    return device.integer("dev", 16 if release.hexadecimal else 0)


def _parses(read: Callable[..., object], *text: str | int) -> bool:
    with suppress(ValueError):
        read(*text)
        return True
    return False


def _accidents(graph: Node, number: int, count: int, comm: Communicator, release: Release) -> list[str]:
    """What NCCL accepts without complaint although it cannot be intended."""
    faults = []
    where = f"line {graph.line}: the {FAMILY_NAMES[number]} graph"
    if count != len(graph.children):
        faults.append(f"{where} says nchannels={count} and has {len(graph.children)} channels")
    expected, known = FAMILY_PATTERNS[number], file_path_types(release.minor)
    if graph.integer("pattern") not in expected:
        faults.append(f"{where} has pattern {graph.integer('pattern')}; {FAMILY_NAMES[number]}s have {expected[0]}")
    for name in ("speedintra", "speedinter"):
        text = graph.text(name)
        if graph.decimal(name) <= 0 or not _parses(float, text):
            faults.append(f"{where} has {name}={text[:20]!r}; the tuner needs a positive number of GB/s")
    for name in ("typeintra", "typeinter"):
        if graph.text(name) not in known:
            faults.append(f"{where} has {name}={graph.text(name)[:20]!r}; known: {', '.join(known)}")
    if graph.integer("samechannels") not in (0, 1):
        faults.append(f"{where} has samechannels={graph.text('samechannels')[:20]!r}, not 0 or 1")
    if number == NVLS:
        if len(graph.children) < len(comm.gpus):
            faults.append(f"{where} has {len(graph.children)} heads for {len(comm.gpus)} GPUs")
        return faults
    # Only a graph that claims NVLink all the way errs where a hop has none.
    linked = comm.linked if graph.text("typeintra").startswith("NVL") else None
    for channel in graph.children[:count]:
        faults += _channel_accidents(channel, number, replace(comm, linked=linked), release)
    return faults


def _channel_accidents(channel: Node, number: int, comm: Communicator, release: Release) -> list[str]:
    where = f"line {channel.line}: the channel"
    faults = []
    for child in channel.children:
        text = child.text("dev")
        if not _parses(int, text, 16 if release.hexadecimal else 0):
            faults.append(f"line {child.line}: dev={text[:20]!r} is no number; NCCL reads {_number(child, release)}")
    listed = [child for child in channel.children if child.name == "gpu"]
    gpus = [_number(child, release) for child in listed]
    nets = [_number(child, release) for child in channel.children if child.name == "net"]
    complete = sorted(gpus) == sorted(comm.gpus)
    if not complete:
        shown = [" ".join(map(str, some[:16])) + " …" * (len(some) > 16) or "none" for some in (gpus, comm.gpus)]
        faults.append(f"{where} lists GPUs {shown[0]}; the communicator has {shown[1]}, each once")
    elif release.reads_ranks:
        ranks = [child.attributes.get("rank") for child in listed]
        if any(r is not None and c_integer(r) != comm.gpus.index(g) for r, g in zip(ranks, gpus, strict=True)):
            faults.append(f"{where} names ranks that its GPUs do not have; the rank wins over dev")
    if comm.nodes == 1 and nets:
        faults.append(f"{where} lists network devices, but there is one node")
    if comm.nodes > 1 and len(nets) != 2:
        faults.append(f"{where} lists {len(nets)} network devices; {comm.nodes} nodes need the way in and the way out")
    if comm.nodes > 1 and comm.nets is not None:
        strange = [net for net in nets if net not in comm.nets]
        faults += [f"{where} lists net {net}, which the machine does not have" for net in strange]
    if complete and comm.linked is not None:
        ends = gpus[:1] if number == RING and comm.nodes == 1 and len(gpus) > 2 else []
        if bare := [f"{a}-{b}" for a, b in pairwise(gpus + ends) if (a, b) not in comm.linked]:
            hops = ", ".join(bare)
            faults.append(f"{where} goes over {hops} without an NVLink, which typeintra claims for all hops")
    return faults


# --- rings and trees ----------------------------------------------------------------------------------------------


def _build(
    graphs: dict[str, LoadedGraph], comm: Communicator, release: Release, accidents: list[str], log: str
) -> Judgement:
    ring, tree = graphs["ring"], graphs["tree"]
    counts = [len(graph.channels) for graph in (ring, tree) if graph.in_force]
    if not counts and not (graphs.get("nvls") and graphs["nvls"].in_force):
        reason = "nothing of the file is in force: it holds no graph with channels, so NCCL runs its own search"
        return Judgement("ignored", reason, log, graphs, None, tuple(accidents))
    # A search finds at most half of the possible channels.
    both = min([*counts, release.most_channels // 2]) if len(counts) < 2 else min(counts)
    if both > release.most_channels // 2:
        half = release.most_channels // 2
        reason = f"{both} channels are written over the end of NCCL's arrays, which have room for {half}"
        raise CrashError(f"SIGABRT: {reason}; NCCL does not check that, and the process dies or goes on with garbage")
    for number, channel in enumerate(ring.channels[:both] if ring.in_force else ()):
        if wrong := broken_ring(channel, comm.gpus):
            log = f"Error : ring {number} {wrong}"
            reason = "the file is loaded, but its rings are not rings through all ranks, so no communicator starts"
            return Judgement("ring_error", f"{reason}: {log}", f"ring building fails: {log}", graphs)
    for number, channel in enumerate(tree.channels[:both] if tree.in_force else ()):
        # NCCL's own channels come after those of the file only where the search has more of them; those are
        # not judged. In the last channel of nodes with one GPU each it looks for a second one; `Pattern.TREE`
        # needs none.
        few = 1 if tree.pattern == Pattern.SPLIT_TREE else 2
        alone = len(comm.gpus) == 1 and tree.pattern != Pattern.TREE and number == both - 1 and comm.nodes > few
        if sorted(channel) != sorted(comm.gpus) or alone:
            reason = f"tree channel {number} is {'-'.join(map(str, channel))}, which is no tree over all ranks"
            follows = "NCCL does not notice, and the first allreduce hangs or is wrong"
            return Judgement("corrupt_tree", f"{reason}; {follows}", log, graphs)
    searched = [name for name, graph in (("ring", ring), ("tree", tree)) if not graph.in_force]
    if searched:
        accidents.append(f"there is no {searched[0]} graph, so NCCL's own search may cut the number of channels")
    elif len(set(counts)) > 1:
        accidents.append(f"{counts[0]} ring and {counts[1]} tree channels; only the first {both} of each are used")
    reason = " and ".join(count(len(g.channels), f"{name} channel") for name, g in graphs.items() if g.in_force)
    channels = None if searched else 2 * both
    return Judgement("used", f"in force: {reason}", log, graphs, channels, tuple(dict.fromkeys(accidents)))


def broken_ring(channel: Sequence[int], gpus: Sequence[int]) -> str:
    """What NCCL's walk from rank 0 finds wrong with a ring of GPU numbers; empty if it is one."""
    n = len(gpus)
    place = {gpu: rank for rank, gpu in enumerate(gpus)}
    ranks = [place.get(gpu, -1) for gpu in channel]
    # Of two places in the list the later counts; the last one leads back to the first.
    following = dict(zip(ranks, [*ranks[1:], ranks[0]], strict=True))
    current, seen = 0, set()
    for _ in range(n):
        seen.add(current)
        current = following.get(current, -1)
    missing = [rank for rank in range(n) if rank not in seen]
    if -1 in ranks or -1 in seen:
        return f"does not contain rank {missing[0]}" if missing else "leaves the communicator"
    if current != 0:
        return f"does not loop back to start ({current} != 0)"
    return f"does not contain rank {missing[0]}" if missing else ""
