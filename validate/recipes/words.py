"""The text of the report around its tables: what was measured and how, published figures, and limits."""

from __future__ import annotations

HEAD = """# Predictions against measurements

Written by `validate/recipes/report.py` from `validate/results`; `make validate` runs everything again."""
WAYS = """\
Time = alpha + bytes / rate, fitted to four sizes from 64 KiB to 64 MiB; rates count the bytes of all peers. "Reduce"
adds two local vectors on the way. Alpha holds the launch of a kernel or of a copy. Where the worst deviation is over
10 %, a line does not describe what was measured, and its rate is too high."""
EMULATED = """\
DGX-1P, DGX-1V, parts of them and half a node of Aurora, every lane of a link one thread block, no other way out of a
GPU. Machines with more devices than there are GPUs run two on a GPU, never two that share a link. What a lane is was
fitted to lines of two to four GPUs, and nothing to the cases. With these numbers every case is simulated twice: its
schedule by `bs.simulate`, which serves what comes first and takes a sum for time that passes on the way, and
its program as the kernel runs it, block by block (`recipes/program_time.py`)."""
RATIOS = """\
The exact ratio is that of the schedules' rates, lane by lane, as in the table of subsets of Blink (2018 short paper,
section 2)."""
NCCL_RINGS = """\
Allreduces over the rings that NCCL 2.28 would choose on the real machine (`blinksim.nccl`), at the same rates."""
CONTROLS = """\
Skewed: the first tree carries twice its share, so its links are over-subscribed. Degraded: the widest link in use
keeps one lane. All factors are to the sound machine, at the same size."""
TENANTS = """\
Speedup of two GPUs of a DGX-1V with two idle helpers over the same two alone, by channels. The Blink+ report (section
4.3) has, at 1 GiB on real machines, 2.91 (broadcast) and 2.59 (allreduce; 2.58 by its logs) for the tenant 0-1, and
1.39 and 1.29 for the tenant 0-3. Small messages gain less, because the ways through helpers are longer."""
SETS = """\
The same chains as NCCL communicators of their own (`blinksim export --format nccl-graph-set`), on the GPUs as they are:
a chain is one channel, which moves 22 GB/s of a broadcast here, as a lane does on a V100, and 18 GB/s of an allreduce.
Speedup over the lanes between the two GPUs alone, of which the tenant 0-3 has two. Published: the Blink+ report's on
V100s (section 4.3), by its logs. Broadcasts gain what the lanes say; allreduces less, probably because NCCL's tree of a
chain through helpers has three or four GPUs, of which the inner ones receive, add and send."""
MXNET = """\
One push and pull of the whole vector, time over one tree to time over one tree per GPU: above 1 many trees win. They
gain most where one tree leaves many lanes idle, and lose where they share lanes or where pieces become small."""
AURORA = """\
Three cards of two tiles; MDFI counts as four lanes of an Xe link (220 GB/s against 53, nominal). Hierarchical: halves
over MDFI, exchange within a plane over Xe links, and back (projection, section 3.1)."""
FULL = """\
Out of place, float32, busbw in GB/s; NCCL without NVLS, same process and same events, one after the other. "By" is the
algorithm with its slices and pieces, staged if what comes from elsewhere is copied out of an inbox, or with `ll128` and
the slices where data go in packets. Spread: slowest minus fastest of 20 iterations, to the median. The limit is the
rate of a copy engine, the most that was seen to leave a port; a switch gives every GPU one. "Ours" is the best of both
protocols and of the algorithms that were tried."""
TIMES = """\
Every run at full speed, from 1 KiB to 1 GiB, beside what the model `execution` says, and every time of NCCL (without
NVLS) beside what its constants say for NCCL's choice. In brackets what we aim at, in per cent. A predicted winner costs
what it takes longer than the real one, among algorithms and protocols that were measured."""
TIMES_BY = {
    "few": "Constants of 40 runs of two and four GPUs, and of 24 of NCCL; these left out",
    "catalogue": "Constants of the catalogue; the runs that they were fitted to are among these",
}
EMULATED_AIM = "Emulated machines, from 16 MiB on; lanes were fitted to lines of GPUs, nothing to the cases"
APART_AIM = "Runs at sizes between the powers of two, and of float16, by the constants of 40 runs"
PUBLISHED_AIM = "Published tables of other machines, from 64 KiB, without the cells that constants were fitted to"
LIMITS = """\
- A piece costs a lane 3 us beside its bytes, in which a block finds it, loads it and hands it on; with many lanes busy
  at once it takes longer, which the model leaves out.
- A lane is described by averages of its sends: whether a piece was received before, and whether it is added up.
- Simulated as schedules, some rings come out up to 16 % too quick, and some of Blink's trees up to 16 % too slow, most
  of them where chunks have few pieces. Simulated as programs they do not: what is missing is the order in which blocks
  take what is ready, and that sums occupy blocks.
- Where two devices share a GPU, their lanes are held to 20 GB/s, so that its port has room. They share its caches too:
  copies, sums and flags of the two meet, which the model leaves out.
- Kernels differ from commit to commit: until 1bcc988, flags held up the data behind them, and a lane lost 0.6 us more a
  piece than since.
- Below 16 MiB nothing is promised of emulated machines: a piece's flags and the launch weigh as much as its bytes.
- Iterations of a collective overlap where data go one way, for NCCL and for us, as in NCCL's own tests: the time is how
  often it can be done, as the mean of the GPUs, not the way from the first to the last. Emulated machines are measured
  apart. The first of the 20 timed iterations is often the slowest here, which the median does not feel and the spread
  does; since then, one that is not timed goes before them.
- At 1 MiB from four GPUs on, and at 4 MiB on six and eight, NCCL is ahead for some collectives: a hop costs us 1 to 2
  us, and there are no packets of 8 bytes (NCCL's LL).
- On three and six GPUs, the slices of a reducescatter of a power of two begin at different distances from a 16-byte
  boundary, and our kernel then moves single elements. NCCL's own tests round sizes so that this does not happen, and so
  does `full_speed.py`: `used_bytes` is then below `size_bytes`."""
