"""Declarations of every command: help, options, and the function that carries it out, loaded when run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import click

from blinksim.cli import options
from blinksim.cli.options import ALL_GPUS, Decimal, Options, Whole, argument, choice, group, option
from blinksim.errors import InputError

if TYPE_CHECKING:
    from blinksim.gpu.execution_time.simulate_blocks import CallsName
    from blinksim.timing.measured.public_tables import SetUpName
    from blinksim.timing.simulation_options import MessagesName, OfferName, ProtocolName, ServiceName, SwitchingName

COMMANDS = options.COMMANDS
# One or several: each command takes both spellings, its own first.
ALGORITHM, ALGORITHMS = "--algorithm --algorithms", "--algorithms --algorithm"
BEFORE: bool = option(text="With --edit: also the answer for the machine before the edits, and what is left of it.")
FILE: str | None = option(metavar="FILE")
FORCE: bool = option(text="Replace FILE if it exists.")
FORCE_ALL: bool = option(text="Replace files that exist.")
JSON: bool = option(text="Print one JSON object.")
LOG_COLLECTIVE: str | None = option(
    text="Which test of LOG; its collective, if LOG does not name it.  [default: what LOG says]", metavar="NAME"
)
NO_NVLS: bool = option(text="NCCL ran with NCCL_NVLS_ENABLE=0.  [default: what LOG says]")
OUTPUT: str | None = option(flags="-o --output", metavar="FILE")
PlotY = Literal["algbw", "busbw", "time"]
PLOT_Y: PlotY = choice("algbw busbw time", "algbw", text="What the picture shows upwards.", rare=True)
QUIET: bool = option(text="No notes on stderr.", flags="-q --quiet")
SIZES = "Doubling from one size to another, by a factor as in 1KiB:1GiB:x4, or a list 1MiB,64MiB."


class TextOptions(Options):
    """A command whose answer is text or JSON."""

    json: bool = JSON
    quiet: bool = QUIET


class TableOptions(Options):
    """A command whose answer is a table, too.

    Options:
      csv: Print the rows as CSV.
    """

    json: bool = JSON
    csv: bool = option()
    quiet: bool = QUIET

    def __init__(self, values: Mapping[str, object]) -> None:
        super().__init__(values)
        if self.json and self.csv:
            raise InputError("--json and --csv are two forms of the answer; choose one")


class MachineOptions(Options):
    """A part of a machine, as `question_of` understands it; rates: the default of --rates in words.

    Options:
      nodes: Nodes, joined by its fabric.
      ranks_per_node: Ranks on every node, card by card in file order, GPUs without a NIC last.  [default: all its GPUs]
      members: The GPUs to run on, by number (0,1,4 or 0-3, through all nodes) or name (n1.gpu0); rank order is list
          order.  [default: all]
      relays: GPUs without a rank that may forward.  [default: those that the machine file names]
      relays_reduce: Relays may also reduce and multicast (Blink+'s helpers).
      links: Link classes to use, such as nvlink or xe,mdfi, or all.  [default: what the machine file says]
      edits: A what-if; may be repeated: 'without gpu3', 'without gpu0-gpu3', 'without nic[0-3]', 'degrade
          gpu0-gpu3 lanes=1', 'replace xe bandwidth=53GB/s', 'add gpu0-gpu5 nvlink lanes=1', 'nvswitch
          can=forward'. It changes every node, or one if it names it (n0.gpu0).
      without_in_network: Switches neither multicast nor reduce: --edit 'without in-network'.
      rates: Table of bandwidths: nominal, seed, nccl, measured, or a YAML file.  [default: {rates}]
    """

    nodes: int = option(1, kind=Whole(1))
    ranks_per_node: int | None = option(kind=Whole(1))
    members: str | None = option(flags="--members --ranks", metavar="LIST")
    relays: str | None = option(metavar="none|idle|LIST")
    relays_reduce: bool = option()
    links: str | None = option(metavar="CLASSES")
    edits: tuple[str, ...] = option(flags="--edit", metavar="EDIT")
    without_in_network: bool = option()
    rates: str | None = option(metavar="NAME|FILE")


class ScheduleMachineOptions(Options):
    """The machine that a schedule runs on.

    Options:
      machine: The machine, instead of the one in the file; files of NCCL, MSCCL and MSCCL++ name none.
      rates: Rates for --machine.  [default: nominal]
      edits: A what-if, such as 'without gpu0-gpu3'; may be repeated.
      members: For files that name no machine: the GPUs of their ranks, in order.  [default: all]
      nodes: For files that name no machine: its nodes.
      root: For files of MSCCL and MSCCL++, which do not name it: the root.
    """

    machine: str | None = option(metavar="MACHINE")
    rates: str | None = option(metavar="NAME|FILE")
    edits: tuple[str, ...] = option(flags="--edit", metavar="EDIT")
    members: str | None = option(metavar="LIST", rare=True)
    nodes: int = option(1, kind=Whole(1), rare=True)
    root: int = option(0, kind=Whole(0), rare=True)


class TrafficOptions(Options):
    """The bytes of an alltoallv.

    Options:
      traffic: For alltoallv: the bytes from every rank to every other, as CSV or .npy, a row per rank (blinksim
          traffic).
    """

    traffic: str | None = option(metavar="FILE", rare=True)


class DataOptions(TrafficOptions):
    """What tells the ranks of a collective apart.

    Options:
      root: Root of broadcast, reduce, gather, scatter.  [default: 0]
    """

    root: int | None = option(kind=Whole(0), metavar="RANK", rare=True)


class WhereOptions(Options):
    """Where the work is done.

    Options:
      workers: Processes on this machine.
      cluster: A dask scheduler to work on instead, such as tcp://host:8786.
    """

    workers: int = option(1, kind=Whole(1), rare=True)
    cluster: str | None = option(metavar="ADDRESS", rare=True)

    def check(self, machine: str) -> None:
        """Refuses processes that cannot read the machine's description."""
        if machine == "-" and (self.cluster or self.workers != 1):
            raise InputError("other processes cannot read standard input; name the machine's file")


class ModelOptions(Options):
    """What models of programs on measured GPUs, and those of NCCL, are asked.

    Options:
      protocol: With --model execution: flags behind the data, or packets.  [default: the quicker one]
      calls: With --model execution: one call after another, whose launches overlap, or each by itself; of a
          training job, captured in a graph, on a stream of their own, or launched by the host one by one.
          [default: the quicker of successive and graph]
      channels: With nccl: the time by measured constants with N channels (NCCL_MIN_NCHANNELS =
          NCCL_MAX_NCHANNELS = N); NCCL's own figure does not know of them.  [default: as NCCL has them]
      nccl_version: With nccl: whose figures, 2.28.3 or 2.30.7.  [default: 2.28.3]
      nccl_graph: With nccl: the channels of a graph file (NCCL_GRAPH_FILE).
      no_nvls: With nccl: without NVLS, as NCCL_NVLS_ENABLE=0.
      set_up: How the library's calls are launched: captured in a graph, from a stream by a process for each GPU,
          or by threads of one process.  [default: graph]
    """

    protocol: Literal["simple", "ll128"] | None = choice("simple ll128", rare=True)
    calls: CallsName | None = choice("successive apart graph stream host", rare=True)
    channels: int | None = option(kind=Whole(1, 64), metavar="N", rare=True)
    nccl_version: str | None = option(rare=True)
    nccl_graph: str | None = option(metavar="FILE", rare=True)
    no_nvls: bool = option()
    set_up: SetUpName | None = choice("graph stream threads")


class GroupOptions(Options):
    """Groups of GPUs that share a machine.

    Options:
      groups: Several at once: members, collective and size of each, such as 0,1:allreduce:64MiB. With sizes
          they end together, without any they have the same rate. --relays idle are GPUs of no group, --relays
          others those of other groups too.
      mesh: All groups of a device mesh at once, such as 2x4, the last axis innermost: of --members, in their order.
      axis: Of the mesh: the groups along this axis only, counted from 0.
    """

    groups: tuple[str, ...] = option(flags="--group", metavar="GROUP")
    mesh: str | None = option(metavar="AxB")
    axis: int | None = option(kind=Whole(0), metavar="N")


class RulesOptions(Options):
    """The job that a file of measured times is of, and who reads the rules made of it.

    Options:
      least_channels: NCCL_MIN_NCHANNELS while it is timed, and with the file: GPUs that a switch joins often
          need more channels than NCCL takes.
      members: The GPUs that SCHEDULE or TIMES is of.  [default: all]
      nodes: Nodes that it is of.
      no_nvls: NCCL runs with NCCL_NVLS_ENABLE=0.
      version: The release of NCCL whose choices are known.
      dialect: Who reads the file.
    """

    least_channels: int | None = option(kind=Whole(1, 64), metavar="N", rare=True)
    members: str | None = option(metavar="LIST")
    nodes: int = option(1, kind=Whole(1))
    no_nvls: bool = option()
    version: str | None = option(flags="--nccl", metavar="VERSION", rare=True)
    dialect: Literal["nccl", "rccl", "ncclx"] = choice("nccl rccl ncclx", "nccl", rare=True)


class ExpertOptions(Options):
    """The experts of tokens.

    Options:
      routing: The experts of every token as recorded, in .npy of (ranks x) tokens x k numbers, or CSV with a
          line per token, -1 for none; of dispatch and combine, as what follows.  [default: drawn]
      placement: With --routing: the ranks that hold each expert, CSV, a line per expert.  [default: blocks]
      tokens: Tokens of every rank that are drawn.  [default: 4096]
      hidden: Elements of a token.  [default: 7168]
      dtype: Their type; fp8 has a float32 scale for every 128.  [default: fp8 for dispatch, else bf16]
      token_size: Bytes of a token in place of --hidden and --dtype, such as 14KiB for 7168 x 2.
      experts: Experts in all.  [default: 256]
      experts_per_rank: Experts that every rank holds, in place of --experts.  [default of traffic: 1]
      top_k: Experts that a token goes to.  [default: 8]
      skew: Exponent of Zipf's law for the choice of experts.  [default: 0, even]
      hot: Part of the tokens that one expert gets besides.
      node_limit: The most nodes that a token goes to, as DeepSeek-V3 routes.
      seed: Of the choices.  [default: 0]
    """

    routing: str | None = option(metavar="FILE", rare=True)
    placement: str | None = option(metavar="FILE", rare=True)
    tokens: int | None = option(kind=Whole(1), rare=True)
    hidden: int | None = option(kind=Whole(1), rare=True)
    dtype: str | None = choice("fp8 bf16 bfloat16 fp16 float16 half fp32 float32 float", rare=True)
    token_size: str | None = option(metavar="SIZE", rare=True)
    experts: int | None = option(kind=Whole(1), rare=True)
    experts_per_rank: int | None = option(kind=Whole(1), rare=True)
    top_k: int | None = option(flags="--top-k --topk", kind=Whole(1), rare=True)
    skew: float | None = option(kind=Decimal(0, 10), rare=True)
    hot: float | None = option(kind=Decimal(0, 1), rare=True)
    node_limit: int | None = option(kind=Whole(1), rare=True)
    seed: int | None = option(kind=Whole(0), rare=True)


class Topo(Options, run=""):
    """List, show, check, import and export machines.

    Example:
      blinksim topo show hgx-h100
    """


class TopoList(TextOptions, run="blinksim.cli.topo:list_machines"):
    """The machines and shapes that blinksim knows.

    The machines that come with blinksim, and the shapes that can be generated; or those machines whose name, maker or
    description has WORD.

    Example:
      blinksim topo list h100
    """

    word: str | None = argument()


class TopoShow(TextOptions, run="blinksim.cli.topo:show"):
    """Devices, links, rates, and the bandwidth between GPUs.

    What MACHINE is made of: devices, links, rates, and the bandwidth between its GPUs.

    {machine}

    Options:
      plot: Draw devices and links as PNG, SVG or PDF: width is bandwidth, red is what edits took.
      bottleneck: In the picture, shade what the bound of this collective cuts apart.

    Example:
      blinksim topo show aurora --nodes 2 --rates seed
    """

    machine: str = argument()
    where: MachineOptions = group(MachineOptions, "nominal")
    plot: str | None = FILE
    bottleneck: str | None = option(metavar="COLLECTIVE")
    force: bool = FORCE


class TopoCheck(TextOptions, run="blinksim.cli.topo:check"):
    """Check a machine against the rules.

    Check a machine against the rules; exit status 1 if one of them finds an error. One that was read from
    topo.xml or nvidia-smi is also compared with the machine of the catalogue that it resembles.

    Options:
      rules: List the rules instead.

    Example:
      blinksim topo check my-machine.yaml
    """

    machine: str | None = argument()
    rules: bool = option()


class TopoImport(Options, run="blinksim.cli.topo:import_machine"):
    """Turn a topo.xml, or any machine, into a machine file.

    Turn an NCCL topo.xml (or any machine) into a machine file that can be edited.

    Options:
      output: Where to write the machine file.  [default: standard output]
      rates: Rates to write down: nominal or nccl.
      like: The machine that FILE is of: what FILE leaves out, such as the network.

    Example:
      blinksim topo import topo.xml -o my-machine.yaml
    """

    file: str = argument()
    output: str | None = OUTPUT
    force: bool = FORCE
    rates: str = option("nominal")
    like: str | None = option(metavar="MACHINE")
    quiet: bool = QUIET


class TopoExport(Options, run="blinksim.cli.topo:export"):
    """Write a machine for NCCL (NCCL_TOPO_FILE).

    Write MACHINE for NCCL, which then plans for it on whatever GPUs the job runs (NCCL_TOPO_FILE).

    Options:
      name: nccl-topo: NCCL's topology file.
      output: Where to write it.  [default: standard output]
      members: Only these GPUs, by number or name.  [default: all]
      bus_ids: PCI bus ids of the GPUs that the job runs on: 0000:1b:00.0,…
      rates: Rates to take the machine at.
      edits: A what-if, such as 'without gpu3'.

    Example:
      blinksim topo export dgx1-v100 --format nccl-topo -o dgx1.xml
    """

    machine: str = argument()
    name: str = option(flags="--format", metavar="NAME", required=True)
    output: str | None = OUTPUT
    members: str | None = option(metavar="LIST")
    bus_ids: str | None = option(metavar="LIST")
    rates: str = option("nominal")
    edits: tuple[str, ...] = option(flags="--edit", metavar="EDIT")
    force: bool = FORCE
    quiet: bool = QUIET


class CallsOptions(Options):
    """Many calls of one size in place of one.

    Options:
      bytes: Of many calls of --bucket bytes each, one after another, such as the gradients of a step.
      bucket: Of one of the calls of --bytes.
    """

    bytes: str | None = option(metavar="SIZE", rare=True)
    bucket: str | None = option(metavar="SIZE", rare=True)

    def __init__(self, values: Mapping[str, object]) -> None:
        super().__init__(values)
        size = values.get("size")
        if (self.bytes or self.bucket) and (not self.bytes or (self.bucket is None) == (size is None)):
            both = "give both, such as --bytes 14GB --bucket 25MiB, and no SIZE"
            raise InputError(f"--bytes is what many calls send in all, --bucket what each sends: {both}")
        self.bucket = self.bucket or (str(size) if self.bytes else None)


class Project(TableOptions, run="blinksim.cli.project:project"):
    """How long will a collective take, and what takes the time?

    How long will COLLECTIVE of SIZE bytes take on MACHINE, and what takes the time?

    SIZE is the larger of one rank's send and receive buffers, such as 256MiB or 2GB. With --traffic it is
    that of the matrix unless you give another, to which the matrix is scaled.

    {machine}

    Options:
      algorithm: In place of the machine's library: a name, a Python file of your own, best (of those that are
          found quickly), all to rank them, or nccl for what NCCL's own model says.
      why: Also the terms, the bounds and what they assume, and the schedules that were considered.
      model: auto (execution with --rates measured where constants are known, else alpha-beta), alpha-beta,
          execution, simulate, nccl-tuner, projection (scale-up + scale-out), a preset such as
          aurora-projection, which pins its rates, or a file of your own.
      reduction_rate: How fast a rank adds what it receives, such as 500GB/s.  [default: as fast as it
          arrives]
      what_if: With a preset: what each change that its source discusses would do.

    Examples:
      blinksim project hgx-h100 allreduce 256MiB
      blinksim project hgx-h100 allreduce 256MiB --nodes 4 --algorithm nccl
      blinksim project dgx1-v100 allreduce 256MiB --members 0,1,2,3,4,7 --algorithm all
      blinksim project aurora allreduce 2GB --nodes 16 --ranks-per-node 12 --model aurora-projection
      blinksim project hgx-h100 dispatch --nodes 8 --tokens 4096 --hidden 7168 --experts 256 --topk 8
      blinksim project dgx1-v100 allreduce 64MiB --mesh 2x4
    """

    machine: str = argument()
    collective: str | None = argument()
    size: str | None = argument()
    where: MachineOptions = group(MachineOptions, "nominal; nccl for what NCCL chooses; what a model pins")
    data: DataOptions = group(DataOptions)
    several: GroupOptions = group(GroupOptions)
    algorithm: str | None = option(flags=ALGORITHM)
    model: str | None = option()
    why: bool = option()
    many: CallsOptions = group(CallsOptions)
    reduction_rate: str | None = option(metavar="RATE", rare=True)
    what_if: bool = option(rare=True)
    before: bool = BEFORE
    timing: ModelOptions = group(ModelOptions)
    drawing: ExpertOptions = group(ExpertOptions)


class Compare(TableOptions, run="blinksim.cli.project:compare"):
    """Which algorithm is best at which size?

    Which algorithm of COLLECTIVE is best on MACHINE at which size?

    {machine}

    Options:
      algorithms: Names and Python files, separated by commas; nccl is what NCCL would choose. Files of
          schedules stand beside them: blinksim's own (.json), MSCCL's (.xml) and MSCCL++'s (.json).
          [default: all that are found quickly]
      model: auto (execution with --rates measured where constants are known, else alpha-beta), alpha-beta,
          execution or simulate; nccl-tuner for NCCL's own ring and tree; several stand side by side for the
          same algorithms.
      search: Also search so long, for each size, a schedule that is made for it, as synth --size does; all
          are simulated.
      price: What a node of each of several machines costs an hour, together or once for each (--price
          p5=55,p5en=63); the table then has busbw over what a GPU costs an hour, in the currency of PRICE.
      plot: Draw algbw against size as PNG, SVG or PDF: what the library takes, could take, and the bound.

    Examples:
      blinksim compare hgx-h100 allreduce
      blinksim compare p5,p5en,gb200-nvl72 allreduce --nodes 8 --plot instances.png
      blinksim compare 9xp5,1xgb200-nvl72 allreduce --price 9xp5=55 --price 1xgb200-nvl72=760
      blinksim compare hgx-h200 allreduce --sizes 1KiB:1GiB:x4 --algorithms ring,two_shot,direct --plot sizes.png
      blinksim compare dgx1-v100 allreduce --members 1,4,5,7 --algorithms nccl,chains,packed
      blinksim compare p5.48xlarge allreduce --nodes 64 --model nccl-tuner --sizes 1MiB:2GiB --plot ring-or-tree.png
      blinksim compare dgx1-v100 allreduce --algorithms ring,mine.json,theirs.xml --plot mine.png
      blinksim compare dgx1-v100 allreduce --model alpha-beta,simulate,nccl-tuner --sizes 1MiB:1GiB:x8
    """

    machine: str = argument()
    collective: str = argument()
    where: MachineOptions = group(MachineOptions, "nominal; nccl for what NCCL chooses")
    data: DataOptions = group(DataOptions)
    sizes: str | None = option(text=f"{SIZES}  [default: 1KiB:1GiB, for several machines x16]")
    algorithms: str | None = option(flags=ALGORITHMS)
    model: str | None = option()
    search: float | None = option(kind=Decimal(0, min_open=True), metavar="SECONDS", rare=True)
    many: CallsOptions = group(CallsOptions)
    timing: ModelOptions = group(ModelOptions)
    price: tuple[str, ...] = option((), metavar="NAME=PRICE", rare=True)
    plot: str | None = FILE
    plot_y: PlotY = PLOT_Y
    force: bool = FORCE


class Bound(TableOptions, run="blinksim.cli.bound:bound"):
    """How fast can a collective be at best, and why?

    How fast can COLLECTIVE be on MACHINE at best, whatever the algorithm?

    Every bound is an exact fraction with a certificate that needs no solver to check: `blinksim verify`
    re-adds the sums of what --json prints.

    {machine}

    Options:
      losses: Also the bound after the loss of each link, or of one of its lanes, worst first.
      gains: Also the bound with one lane (or NIC) more, best first.
      levels: Also what GPUs, nodes and each level of switches allow by themselves.
      size: Also the least time for SIZE: latency, overhead and bandwidth together. Of groups: of each
          that names none.

    Examples:
      blinksim bound hgx-h100 allreduce
      blinksim bound dgx1-v100 allreduce --members 0,1,2,3,4,7
      blinksim bound dgx-a100 allgather --nodes 4 --json > bound.json
      blinksim bound p3.16xlarge allreduce --losses
      blinksim bound hgx-h100 alltoall --nodes 16 --edit 'fabric shape=tree leaf_nodes=4 oversubscription=2' --levels
      blinksim bound dgx1-v100 allreduce --size 1MiB
      blinksim bound dgx1-v100 allreduce --edit 'without gpu0-gpu3' --before
      blinksim bound hgx-h100 dispatch --nodes 8 --experts 256 --topk 8 --node-limit 4
      blinksim bound mi355x --group 0,1 --group 2-5:allgather --relays others --relays-reduce
      blinksim bound hgx-h100 --mesh 2x4 --size 64MiB
    """

    machine: str = argument()
    collective: str | None = argument()
    where: MachineOptions = group(MachineOptions, "nominal")
    data: DataOptions = group(DataOptions)
    several: GroupOptions = group(GroupOptions)
    losses: bool = option()
    gains: bool = option()
    levels: bool = option()
    size: str | None = option(metavar="SIZE")
    before: bool = BEFORE
    drawing: ExpertOptions = group(ExpertOptions)


class Schedules(TextOptions, run="blinksim.cli.schedules:schedules"):
    """List the schedules that come with blinksim.

    List the schedules that come with blinksim; verify, simulate, run and export take their names.

    Examples:
      blinksim schedules --json
      blinksim verify dgx1-v100-8-allreduce
    """


class Synth(TextOptions, run="blinksim.cli.bound:synth"):
    """Build a schedule, prove it, and say how far it is from the best.

    Build a schedule of COLLECTIVE on MACHINE, verify it, and write it to a file.

    {machine}

    Options:
      algorithm: A name, or a Python file; packed attains the bound.  [default: packed, with --size the
          quickest]
      size: Build what is quickest for this many bytes, such as 1MiB, and say how long it takes: of what
          project considers, by the model that it takes; where that is alpha-beta, the quickest are simulated.
          Of groups: of each that names none.
      messages: With --size: count what a connection sends in a step as one message, or every chunk as one, as
          programs of MSCCL and emulated lanes send it.  [default: joined]
      time_limit: Seconds after which the search ends.
      polish: Search this long for lower and fewer trees at the same rate; prints the compromises.
      trees: packed: exactly K trees per root, at a stated loss.
      channels: chains, rings, blinkplus: at most K channels.
      chunks: few_steps: chunks that each rank's data is cut into; of broadcast and reduce, the vector.
          [default: 1]
      steps: few_steps: how many.  [default: the fewest possible]
      rounds: few_steps: of all steps together.  [default: the fewest that are found]
      pareto: Instead of one schedule, those that no other beats at every size; -o names a folder
          for them.
      alike: ring: pass every node the same way, as NCCL's files need.
      listed: List the algorithms instead.
      seed: Seed of a solver, for repeatable answers, or of the choice of experts.
      output: Where to write the schedule (.json, .json.gz).
      plot: Draw the trees, the largest first, or the loads of an alltoall, as PNG, SVG or PDF.

    Examples:
      blinksim synth dgx1-v100 allreduce --members 0,1,2,3,4,7 -o trees.json
      blinksim synth dgx1-v100 allgather --algorithm ring -o ring.json
      blinksim synth hgx-h200 allreduce --size 1MiB --rates measured -o quickest.json
      blinksim synth dgx1-v100 allgather --algorithm few_steps --chunks-per-rank 2 --steps 2
      blinksim synth dgx1-v100 allgather --pareto --plot front.png -o front
      blinksim synth hgx-h100 dispatch --nodes 2 --tokens 128 -o dispatch.json
      blinksim synth dgx1-v100 --group 0,1 --group 2,3 --relays others --relays-reduce -o groups.json
    """

    machine: str | None = argument()
    collective: str | None = argument()
    where: MachineOptions = group(MachineOptions, "nominal")
    data: DataOptions = group(DataOptions)
    several: GroupOptions = group(GroupOptions)
    algorithm: str | None = option(flags=ALGORITHM)
    size: str | None = option(metavar="SIZE")
    messages: MessagesName | None = choice("joined single", rare=True)
    time_limit: float | None = option(kind=Decimal(0, min_open=True), metavar="S")
    polish: float | None = option(kind=Decimal(0, min_open=True), metavar="SECONDS", rare=True)
    trees: int | None = option(kind=Whole(1), metavar="K", rare=True)
    channels: int | None = option(kind=Whole(1), metavar="K", rare=True)
    chunks: int | None = option(flags="--chunks-per-rank", kind=Whole(1), metavar="C", rare=True)
    steps: int | None = option(kind=Whole(1), metavar="S", rare=True)
    rounds: int | None = option(kind=Whole(1), metavar="R", rare=True)
    pareto: bool = option()
    alike: bool | None = option(rare=True)
    listed: bool = option(flags="--list")
    seed: int | None = option(kind=Whole(0), rare=True)
    output: str | None = OUTPUT
    plot: str | None = FILE
    force: bool = FORCE
    drawing: ExpertOptions = group(ExpertOptions)


class Verify(TextOptions, run="blinksim.cli.schedules:verify"):
    """Is this schedule, or this bound, right?

    Is FILE right? It is a schedule, what `bound --json` printed, or a file for a runtime.

    The exit status is 1 if something is wrong, and 5 if nothing is but something that FILE claims is not
    proved.

    A schedule that comes with blinksim goes by its name (`blinksim schedules`). A schedule is interpreted
    chunk by chunk: every rank must end with what the collective promises. A bound is derived anew from the
    machine file and the witness in its certificate; no solver is asked. That a bound is attained takes a
    schedule: the one at hand, or one that is built and interpreted. A graph file is carried through NCCL's
    own stages for the GPUs of MACHINE: is it used, ignored, refused, or a crash? MSCCL's XML and MSCCL++'s
    plans are carried out symbolically.

    Options:
      in_place: Ask for a schedule whose input and output are one buffer.
      slots: Buffers of each connection.  [default: 1; for MSCCL's XML those of its protocol]
      release: For a graph.xml: NCCL.

    Examples:
      blinksim verify schedule.json
      blinksim verify dgx1-v100-8-allreduce
      blinksim verify schedule.json --edit 'without gpu0-gpu3'
      blinksim bound dgx1-v100 allreduce --json > bound.json; blinksim verify bound.json
      blinksim verify graph.xml --machine topo.xml --members 0,1,2,3
    """

    file: str = argument()
    where: ScheduleMachineOptions = group(ScheduleMachineOptions)
    in_place: bool = option(rare=True)
    slots: int | None = option(kind=Whole(1), rare=True)
    release: str = option("2.28.3", flags="--nccl", metavar="X.Y.Z", rare=True)


class Export(TextOptions, run="blinksim.cli.schedules:export"):
    """Write a schedule so that NCCL, RCCL or MSCCL++ runs it.

    Write SCHEDULE so that a communication library runs it: NCCL, RCCL, MSCCL or MSCCL++.

    The schedule is verified first. Exit status 3 says that the format cannot hold it, and what to do instead.

    nccl-tuner makes rules for the tuners of NCCL, RCCL and NCCLX. In place of a schedule it takes TIMES, a
    file of measured times as blinksim tune --times-to writes it; --least-channels,
    --no-nvls, --nccl and --dialect are for it alone.

    Options:
      name: nccl-graph, nccl-graph-set, msccl-xml, mscclpp-json, nccl-tuner.
      output: Where to write it; a folder for nccl-graph-set.  [default: standard output]
      channels: The most channels.  [default: what every release loads]
      machine: The machine that times are of, and of files of MSCCL and MSCCL++, which name none.

    Examples:
      blinksim synth dgx1-v100 allreduce --members 0,1,2,3 --algorithm chains -o chains.json
      blinksim export chains.json --format nccl-graph -o graph.xml
      blinksim export plan.json --machine hgx-h100 --format msccl-xml -o plan.xml
      blinksim export times.csv --format nccl-tuner --machine hgx-h200 --dialect ncclx -o tuner.csv
    """

    schedule: str = argument()
    name: str = option(flags="--format", metavar="NAME", required=True)
    output: str | None = OUTPUT
    channels: int | None = option(kind=Whole(1), metavar="N")
    machine: str | None = option(metavar="MACHINE")
    job: RulesOptions = group(RulesOptions)
    force: bool = FORCE


class SimulateOptions(Options):
    """What `blinksim.timing.simulator.simulate` takes besides the schedule and the size.

    Options:
      chunk: Bytes of a piece at most.  [default: what takes the least time]
      service: How a link serves: in order of arrival; in rounds; by steps.  [default: fifo, or ordered where
          steps take less time by it]
      offer: How pieces stand in line: one of every send at a time, or all there are.
      protocol: What share of the traffic is data: all, 1/2, 15/16.
      switching: Whether switches and hosts pass a piece on while it arrives.
      messages: What a connection sends in a step: one message of all its chunks, or one of each. Trees always
          send one of each.
    """

    chunk: str | None = option(metavar="SIZE")
    service: ServiceName | None = choice("fifo static ordered")
    offer: OfferName = choice("turns burst", "turns", rare=True)
    protocol: ProtocolName = choice("simple ll ll128", "simple", rare=True)
    switching: SwitchingName = choice("cut-through store-and-forward", "cut-through", rare=True)
    messages: MessagesName = choice("joined single", "joined", rare=True)


class Simulate(TextOptions, run="blinksim.cli.schedules:simulate"):
    """How long will a schedule take, and which links are busy?

    How long does SCHEDULE take for SIZE bytes when its pieces share the links of its machine?

    SCHEDULE is a file or a name of `blinksim schedules`; with --machine also an XML file of MSCCL or a plan
    of MSCCL++. A schedule of tokens, of a traffic matrix or of groups needs no SIZE.

    Every piece waits for its data and for its link; the answer says which links were busy and what the time
    consists of.

    Options:
      launch: Time before anything starts.
      trace: Write the transfers in Chrome's trace format; of very many, a sample.
      plot: Draw what the busiest links do over time (.png, .svg, .pdf).

    Examples:
      blinksim simulate trees.json 256MiB
      blinksim simulate trees.json 256MiB --chunk 1MiB --trace run.json     (open it at ui.perfetto.dev)
      blinksim simulate trees.json 256MiB --service static --plot links.png
      blinksim simulate msccl.xml 256MiB --machine dgx1-v100
    """

    schedule: str = argument()
    size: str | None = argument()
    where: ScheduleMachineOptions = group(ScheduleMachineOptions)
    how: SimulateOptions = group(SimulateOptions)
    launch: str = option("0us", metavar="TIME", rare=True)
    trace: str | None = FILE
    plot: str | None = FILE
    force: bool = FORCE_ALL


class RunOptions(Options):
    """What `blinksim.execute` takes besides the schedule and the size.

    Options:
      executor: numpy on the CPU, cupy on GPUs; auto takes GPUs where CuPy finds one for each device.
      op: sum, prod, min or max.
      dtype: Such as float32, bfloat16, int32.
      check: Compare every rank's data afterwards.
      in_place: Use one buffer for input and output.
      protocol: Flags behind the data, or packets that carry them, over NVLink.  [default: on GPUs the quicker
          one for this size; with --lane-blocks and on the CPU simple]
      warmup: Iterations not counted (GPUs).
      iterations: Timed iterations (GPUs).
      seed: Order in which NumPy runs the blocks.  [default: in turn]
      lane_blocks: Emulate the schedule's machine: N thread blocks for every lane of a link, and no other way
          out of a GPU.
    """

    executor: Literal["auto", "numpy", "cupy"] = choice("auto numpy cupy", "auto")
    op: str = option("sum")
    dtype: str = option("float32")
    check: bool = option(True, flags="--check/--no-check")
    in_place: bool = option(rare=True)
    protocol: Literal["simple", "ll128"] | None = choice("simple ll128", rare=True)
    warmup: int = option(5, kind=Whole(0), rare=True)
    iterations: int = option(20, kind=Whole(1), rare=True)
    seed: int | None = option(kind=Whole(0), rare=True)
    lane_blocks: int | None = option(kind=Whole(1), metavar="N", rare=True)


class Run(TextOptions, run="blinksim.cli.schedules:run"):
    """Run a schedule for real, on the CPU or on GPUs, and check the data.

    Run SCHEDULE with vectors of SIZE bytes; exit status 1 if the data are wrong. A schedule of tokens,
    of a traffic matrix or of groups needs no SIZE.

    NumPy interprets on the CPU the same program that GPUs run through CuPy; its time says nothing about a
    machine.

    Options:
      pairs: Measure every pair of GPUs, way by way, and compile the kernels of training jobs, instead of running a
          schedule.

    Examples:
      blinksim run schedule.json 1000003 --executor numpy --op prod --dtype int32 --check
      blinksim run msccl.xml 1MiB --machine dgx1-v100
      blinksim run schedule.json 1GiB --executor cupy
      blinksim run schedule.json 256MiB --executor cupy --lane-blocks 1
      blinksim run --pairs
    """

    schedule: str | None = argument()
    size: str | None = argument()
    where: ScheduleMachineOptions = group(ScheduleMachineOptions)
    how: RunOptions = group(RunOptions)
    pairs: bool = option()


class Advise(TextOptions, run="blinksim.cli.project:advise"):
    """What should I load, and what does it bring?

    What to load on MACHINE, or the one this runs on, and what it brings: how long COLLECTIVE takes with the library,
    with the file, and at best, as `project` says it.

    Without MACHINE, asks nvidia-smi for this computer's own GPUs.

    {machine}

    COLLECTIVE is allreduce, and SIZE 256MiB or the matrix's largest buffer, unless they say otherwise.

    Options:
      named_collective: COLLECTIVE, also without MACHINE.
      named_size: SIZE.
      no_nvls: NCCL will run with NCCL_NVLS_ENABLE=0.
      why: Also what the times and the bound rest on, and the schedules that were considered.
      output: Where to write what is worth loading, if anything is.

    Examples:
      blinksim advise
      blinksim advise hgx-h100 --nodes 2
      blinksim advise dgx1-v100 --members 0,1,2,3,4,7
      blinksim advise topo.xml allgather 1GiB -o graph.xml
    """

    machine: str | None = argument()
    collective: str | None = argument()
    size: str | None = argument()
    where: MachineOptions = group(MachineOptions, "nominal")
    named_collective: str | None = option(flags="--collective", metavar="NAME", rare=True)
    named_size: str | None = option(flags="--size", metavar="SIZE", rare=True)
    data: DataOptions = group(DataOptions)
    no_nvls: bool = option()
    why: bool = option()
    before: bool = BEFORE
    output: str | None = OUTPUT
    force: bool = FORCE

    def __init__(self, values: Mapping[str, object]) -> None:
        super().__init__(values)
        for name, given in (("collective", self.named_collective), ("size", self.named_size)):
            if given and getattr(self, name):
                raise InputError(f"--{name} says what {getattr(self, name)} says; leave one of them out")
            setattr(self, name, getattr(self, name) or given)


class Diagnose(TableOptions, run="blinksim.cli.logs:diagnose"):
    """Is my bandwidth normal? Compare a log of nccl-tests, or one figure, with what is expected, and the bound.

    Compare what nccl-tests measured with what the library takes on MACHINE (as `project` says), and with what
    no schedule exceeds. Use it third, with your first log: after `health` and `expect`, before `locate`.

    LOG: text that nccl-tests printed, or its JSON (-J), or tables of the OSU Micro-Benchmarks, oneCCL's
    benchmark or Intel MPI Benchmarks; - for standard input. Names the first size from which times are above the
    interval of what is expected, and why. Several logs stand side by side. Without a log, a figure: --size with
    --busbw or --time.

    {machine}

    Options:
      machine: The machine that LOG was measured on.
      busbw: A measured bus bandwidth in GB/s, as nccl-tests prints it, in place of LOG.
      time: A measured time, such as 40ms, in place of LOG.
      size: Of the figure.
      threshold: Exit status 1 if the largest size reaches less.  [default: status 1 for what is behind or slow,
          5 if that cannot be told]
      against: What PERCENT is of.
      in_place: Take the times in place.  [default: out of place, where there are any]
      why: Also all sizes, the certificate of the bound, NCCL's own choice, and what busbw is.
      nccl_version: The NCCL that ran.  [default: what LOG says, else 2.28.3]
      set_up: How the calls were launched.  [default: what LOG says, else graph]

    Examples:
      all_reduce_perf -b 1K -e 1G -f 2 -g 8 > log.txt
      blinksim diagnose log.txt --machine hgx-h200
      blinksim diagnose --busbw 380 --size 8GiB --machine p5 --nodes 8
      blinksim diagnose log.txt --machine hgx-h200 --threshold 75 -q
      blinksim diagnose monday.txt tuesday.txt --machine hgx-h200
    """

    logs: tuple[str, ...] = argument(metavar="[LOG]...")
    machine: str | None = option(metavar="MACHINE")
    where: MachineOptions = group(MachineOptions, "nominal for the bound, nccl for NCCL's model")
    busbw: str | None = option(metavar="RATE")
    time: str | None = option(metavar="TIME")
    size: str | None = option(metavar="SIZE")
    collective: str | None = LOG_COLLECTIVE
    threshold: float | None = option(kind=Decimal(0, 1000), metavar="PERCENT")
    against: str = choice("bound model", "bound", rare=True)
    in_place: bool = option(rare=True)
    no_nvls: bool = NO_NVLS
    why: bool = option()
    nccl_version: str | None = option(metavar="VERSION", rare=True)
    set_up: SetUpName | None = choice("graph stream threads", rare=True)


class Expect(TableOptions, run="blinksim.cli.logs:expect"):
    """What should a healthy machine reach, and does this log? Busbw by size, with floor and ceiling.

    What busbw to expect of the library on MACHINE by collective and size (as `project` says), the floor below
    which something is wrong, and the ceiling that no run exceeds. With --check: whether logs of nccl-tests
    reach it. Use it second, before you measure: after `health`, before `diagnose` and `locate`.

    The exit status of --check is 1 if a log is slow, and 5 if that cannot be told; `diagnose` says why it is.

    {machine}

    Options:
      collective: Which, separated by commas.  [default: allreduce,allgather,reducescatter,alltoall; with
          --check what LOG has]
      format: prometheus: recording rules; nccl-tests: its commands with NCCL_TESTS_MIN_BW, which fail below
          the floor.
      logs: Judge this log as `diagnose` does; may be repeated. Also a trace of PyTorch's profiler, a dump of
          its flight recorder, or records of NCCL Inspector: what they lose by group and collective.
      one_job: The logs are of ranks of one job, which wait for each other: a call takes what its quickest
          rank took.
      in_place: Of LOG, take the times in place.  [default: out of place, where there are any]
      nccl_version: The NCCL that ran.  [default: what LOG says, else 2.28.3]
      set_up: How calls are launched.  [default: what LOG says, else graph]

    Examples:
      blinksim expect hgx-h100
      blinksim expect p5 --nodes 8 --collective allreduce --sizes 8MiB:8GiB:x4 --format nccl-tests
      blinksim expect hgx-h200 --format prometheus > rules.yml
      blinksim expect hgx-h200 --check log.txt
    """

    machine: str = argument()
    where: MachineOptions = group(MachineOptions, "nominal for the bound, nccl for NCCL's model")
    collective: str | None = option(metavar="NAMES")
    sizes: str = option("1KiB:1GiB:x32", text=SIZES)
    format: str | None = choice("text csv json yaml prometheus nccl-tests")
    logs: tuple[str, ...] = option(flags="--check", metavar="LOG")
    one_job: bool = option()
    in_place: bool = option(rare=True)
    no_nvls: bool = NO_NVLS
    nccl_version: str | None = option(metavar="VERSION", rare=True)
    set_up: SetUpName | None = choice("graph stream threads", rare=True)

    def __init__(self, values: Mapping[str, object]) -> None:
        super().__init__(values)
        if self.format and (self.json or self.csv):
            raise InputError("--format names the form of the answer; leave --json and --csv out")
        if self.logs and self.format in ("prometheus", "nccl-tests"):
            raise InputError(f"--format {self.format} is not for --check, which compares; leave one out")


class Health(TextOptions, run="blinksim.cli.topo:health"):
    """Is this machine whole, what does it cost if not, and what to do meanwhile?

    Compare MACHINE with its like in the catalogue: which GPUs, NVLinks and NICs are missing, which PCIe links are
    slower than they can be, what that costs NCCL and the bound, which GPUs to take meanwhile, and what to check.
    Use it first, as nothing has to run on the GPUs: before `expect`, `diagnose` and `locate`.

    MACHINE: text of nvidia-smi topo -m, -L and nvlink -s and of lspci -vv, any of them in one file; NCCL's
    topology file, or its debug log with the subsystem GRAPH; or any machine; - for standard input. The exit
    status is 1 if something is missing or slower, and 5 if the catalogue has no such machine.

    Examples:
      (nvidia-smi -L; nvidia-smi topo -m; nvidia-smi nvlink -s; sudo lspci -vv) > box.txt; blinksim health box.txt
      NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=GRAPH all_reduce_perf -g 8 > log.txt; blinksim health log.txt
    """

    machine: str = argument()


class Locate(TableOptions, run="blinksim.cli.logs:locate"):
    """Which device or link is at fault? Several logs of nccl-tests, each on other GPUs, and the run to do next.

    Which fault explains all logs: NVLinks, PCIe, NICs, a GPU, a host, a node's network, a rail or a leaf's
    uplinks. Every fault is an edit of MACHINE, which says how many times as long each log's job takes. Use it
    last, once a log is slow: after `health`, `expect` and `diagnose`.

    LOG: text that nccl-tests printed, or its JSON (-J); its head names hosts and GPUs. Behind a log GPUs may be
    named, as in log.txt@0,1, and the adapters that it ran on, as in log.txt:hca=nic0, unless it shows what
    NCCL_IB_HCA was. Times of alike GPUs beside each other show faults that one log does not. The exit status is 1
    if there is a fault, or two at once, and 5 if these logs do not say, or one is not normal.

    {machine}

    Options:
      nodes: Nodes, joined by its fabric.
      hosts: Their names in order, separated by commas.  [default: in the order of the logs]
      edits: What each node has that MACHINE lacks, such as 'fabric shape=tree leaf_nodes=4'; may be repeated.
      next: Also the run of nccl-tests that tells most about what is open.
      plan: Also runs for a machine of which nothing is known, ten at most.

    Examples:
      blinksim locate hgx-h100 all.txt left.txt right.txt --next
      blinksim locate p5 *.txt --nodes 8
      blinksim locate hgx-h100 --nodes 4 --plan
    """

    machine: str = argument()
    logs: tuple[str, ...] = argument(metavar="[LOG]...")
    nodes: int = option(1, kind=Whole(1))
    hosts: str | None = option(metavar="LIST")
    edits: tuple[str, ...] = option(flags="--edit", metavar="EDIT")
    collective: str | None = LOG_COLLECTIVE
    no_nvls: bool = NO_NVLS
    next: bool = option()
    plan: bool = option()


class Calibrate(TextOptions, run="blinksim.cli.logs:calibrate"):
    """What do my links really carry? Fit rates to a log of nccl-tests.

    Fit alpha and bandwidth of MACHINE's link classes to what nccl-tests measured.

    LOG: text that nccl-tests printed, or its JSON (-J); - for standard input. Several logs, of several
    collectives or numbers of GPUs, are fitted together. Single wild times do not matter, and every figure
    comes with its interval of 95 %.

    {machine}

    Options:
      machine: The machine that LOG was measured on, or this one.
      gpus: Time at most 40 runs on the first N GPUs of this machine (default: all) instead of reading LOG,
          and fit the constants of running programs and of NCCL.
      output: Where to write the rates, as --rates reads them (.yaml).
      force: Replace RATES if it exists.

    Examples:
      blinksim calibrate all_reduce.txt --machine hgx-h200 -o rates.yaml
      blinksim project hgx-h200 allreduce 1GiB --rates rates.yaml
      blinksim calibrate --gpus --machine hgx-h200 -o rates.yaml
    """

    logs: tuple[str, ...] = argument(metavar="[LOG...]")
    machine: str | None = option(metavar="MACHINE")
    gpus: int | None = option(kind=Whole(2, ALL_GPUS), metavar="[N]", bare=str(ALL_GPUS))
    where: MachineOptions = group(MachineOptions, "nominal")
    collective: str | None = LOG_COLLECTIVE
    output: str | None = option(flags="-o --output", metavar="RATES")
    force: bool = option()
    no_nvls: bool = NO_NVLS


class Tune(TextOptions, run="blinksim.cli.schedules:tune"):
    """Make stock NCCL quicker: time its choices, write a file for its tuner.

    Find where another of NCCL's own choices is quicker, and write a file of rules for a tuner plugin.

    {machine}

    TIMES: measured times of choices, as --times-to writes them.

    Options:
      gpus: Time NCCL's choices on the first N GPUs of this machine (default: all) instead of reading TIMES.
      measurements: The most times to take.
      output: Where to write the rules.
      times_to: Where to write the measured times.
      plugin: Build the plugin that reads the rules, with the system's C compiler.

    Examples:
      blinksim tune --plugin libnccl-tuner-blinksim.so
      blinksim tune hgx-h200 --gpus --least-channels 32 --times-to times.csv -o tuner.csv
      blinksim tune hgx-h200 times.csv --dialect ncclx -o tuner.csv
    """

    machine: str | None = argument()
    times: str | None = argument()
    gpus: int | None = option(kind=Whole(2, ALL_GPUS), metavar="[N]", bare=str(ALL_GPUS))
    measurements: int = option(40, kind=Whole(5, 4000), rare=True)
    job: RulesOptions = group(RulesOptions)
    output: str | None = OUTPUT
    times_to: str | None = FILE
    plugin: str | None = FILE
    force: bool = FORCE_ALL


class Measured(TableOptions, run="blinksim.cli.logs:measured"):
    """What was measured and published, beside what the model says?

    What was measured on MACHINE and published, beside NCCL's prediction and the bound.

    Without MACHINE, the machines of which there are tables. Aurora's stand beside its projection.

    Options:
      quality: Which tables to take: A are whole ones with machine and number of GPUs, in B something is
          derived, C are excerpts, D reports of what is slow.
      why: Also how wrong predictions are by size, cells of every sixteenth size, and the sources.
      plot: Draw measured, predicted and bound against size, or measured and projected, as PNG, SVG or PDF.
      plot_collective: What the picture shows.  [default: allreduce]

    Examples:
      blinksim measured p5
      blinksim measured aurora
    """

    machine: str | None = argument()
    quality: str = option("ABCD")
    why: bool = option()
    plot: str | None = FILE
    plot_collective: str = option("", metavar="NAME")
    plot_y: PlotY = PLOT_Y
    force: bool = FORCE


class Reproduce(TableOptions, run="blinksim.cli.logs:reproduce"):
    """What do the papers behind it say, and what comes out here?

    The tables of DOCUMENT beside what blinksim computes, and the difference.

    DOCUMENT: blink, blinkplus, cubedo (the SISCI-NCCL thesis), mxnet or aurora. What a document prints and
    cannot be is named at the end.

    Examples:
      blinksim reproduce aurora
      blinksim reproduce blink --json
    """

    document: str = argument(kind=click.Choice(["blink", "blinkplus", "cubedo", "mxnet", "aurora"]))


class Traffic(TextOptions, run="blinksim.cli.bound:traffic"):
    """What do experts send to whom? Make, show and draw traffic for alltoallv.

    What does every rank send to every other? Make the traffic of experts, or show the matrix in FILE.

    Line i of FILE has the bytes that rank i has for rank 0, rank 1 and so on, separated by commas; or FILE is
    what numpy.save wrote. Each token goes once to every rank that holds one of its experts.

    Options:
      ranks: Make the dispatch of experts on this many ranks.
      combine: The way back: the transposed matrix.
      output: Write the matrix, as CSV or .npy, a row per rank.
      routing_to: Write the experts of every token, as CSV, a line per token, or .npy; dispatch takes them.
      plot: Draw the matrix as PNG, SVG or PDF.

    Examples:
      blinksim traffic --ranks 64 --experts-per-rank 4 --top-k 8 --skew 0.8 -o dispatch.csv
      blinksim traffic dispatch.csv --combine -o combine.csv
      blinksim traffic dispatch.csv --plot dispatch.png
      blinksim traffic --ranks 64 --experts-per-rank 4 --node-limit 4 --routing-to experts.npy
      blinksim bound hgx-h100 alltoallv --nodes 8 --traffic dispatch.csv
    """

    file: str | None = argument()
    ranks: int | None = option(kind=Whole(2))
    drawing: ExpertOptions = group(ExpertOptions)
    combine: bool = option()
    output: str | None = OUTPUT
    routing_to: str | None = option(metavar="FILE", rare=True)
    plot: str | None = FILE
    force: bool = FORCE_ALL


class Place(TableOptions, run="blinksim.cli.bound:place"):
    """Which GPUs should I ask for?

    Rank all choices of COUNT GPUs of MACHINE by the best rate that a collective can have on them; of a large
    cluster, even divisions among nodes. Take away GPUs that are not free with --edit 'without gpu[2-3]'; the members
    are its answer.

    {machine}

    Options:
      collective: What the GPUs will run.
      size: Also how long so many bytes take on the choices that are printed: with the library, at best, at least.
          With --mesh: of a group, or one for every axis, such as 64MiB,1GiB.
      mesh: In place of COUNT: the best order of all GPUs in a device mesh, such as 2x4, the last axis innermost.
          The groups of an axis run at once, one axis after the other.
      top: Rows to print as text; choices with equal rates are one row.

    Examples:
      blinksim place dgx1-v100 4
      blinksim place dgx1-v100 6 --size 256MiB
      blinksim place hgx-h100 4 --edit 'degrade gpu5-nvswitch lanes=12'
      blinksim place dgx1-v100 --mesh 2x4 --size 1GiB,64MiB
    """

    machine: str = argument()
    count: int | None = argument(kind=Whole(2))
    where: MachineOptions = group(MachineOptions, "nominal")
    collective: str = option("allreduce")
    data: TrafficOptions = group(TrafficOptions)
    size: str | None = option(metavar="SIZE")
    mesh: str | None = option(metavar="AxB")
    top: int = option(3, kind=Whole(1))
    work: WhereOptions = group(WhereOptions)


class Sweep(TableOptions, run="blinksim.cli.project:sweep"):
    """What if? The time at every combination of edits, nodes, sizes and algorithms.

    How does the time of COLLECTIVE on MACHINE change with what-ifs, nodes, sizes and algorithms?

    {machine}

    Options:
      vary: What differs; may be repeated, all combinations are taken. nodes=1,2,4 (or ranks-per-node, rates);
          a property of links: 'xe bandwidth=15GB/s,53GB/s', 'gpu0-gpu3 lanes=1,2'; whole edits, separated by
          semicolons: 'edit=none;without gpu3' (and so members, relays, links). Of a dispatch or combine also
          tokens=128,4096, top-k, experts, hidden, dtype, skew, hot, node-limit.
      algorithms: Names and Python files, separated by commas; best of those that are found quickly, unsearched
          for all that need no solver, nccl: what NCCL would choose, library: what it takes; files of schedules
          (.json, MSCCL's .xml).  [default: library; best if a model is named]
      model: alpha-beta, execution (measured GPUs of one node), simulate, a preset such as projection, or a
          file of your own.  [default: alpha-beta]
      bounds: Also the best rate that is possible at every point.
      output: Write all rows there as CSV. Finished work is kept in FILE.journal meanwhile: after a kill the
          same command goes on from it.
      plot: Draw algbw as PNG, SVG or PDF: lines along sizes, nodes and other numbers, bars for a few points, a
          heat map for two categories.
      plot_y: What the picture shows upwards; terms: times as bars of what takes them, of a preset.

    Examples:
      blinksim sweep aurora allreduce --sizes 2GB --vary nodes=2,4,8,16 --vary 'xe bandwidth=15GB/s,53GB/s' \\
          --ranks-per-node 12 --model aurora-projection
      blinksim sweep dgx1-v100 allreduce --sizes 1MiB,256MiB --algorithms ring,packed --bounds \\
          --vary 'edit=none;without gpu0-gpu3;degrade gpu0-gpu4 lanes=1'
      blinksim sweep hgx-h200 allreduce --vary nodes=2,16,128 --workers 2 -o pods.csv --plot pods.png
      blinksim sweep hgx-h100 dispatch --vary nodes=2,8 --vary tokens=128,4096 --topk 8
    """

    machine: str = argument()
    collective: str = argument()
    where: MachineOptions = group(MachineOptions, "nominal; nccl for what NCCL chooses; what a model pins")
    data: DataOptions = group(DataOptions)
    sizes: str = option("1MiB:256MiB:x16", text=SIZES)
    vary: tuple[str, ...] = option(metavar="WHAT=VALUES")
    algorithms: str | None = option(flags=ALGORITHMS)
    model: str | None = option()
    bounds: bool = option()
    work: WhereOptions = group(WhereOptions)
    output: str | None = OUTPUT
    plot: str | None = FILE
    plot_y: Literal["algbw", "busbw", "time", "terms"] = choice("algbw busbw time terms", "algbw", rare=True)
    force: bool = FORCE_ALL
    drawing: ExpertOptions = group(ExpertOptions)


class Help(Options, run="blinksim.cli.options:explain"):
    """What does this word mean? Words of the answers, and all options of a command.

    What does WORD mean? It is a word of the answers, such as busbw or NVLS; the name of a command, for all of
    its options; or machine, for the options that choose a machine and its GPUs. Without WORD: all commands
    and words.

    Examples:
      blinksim help busbw
      blinksim help project
      blinksim help machine
    """

    words: tuple[str, ...] = argument(metavar="[WORD]")
