"""I have an algorithm of my own: is it right, and is it quick?

Run it with: python own_algorithm.py
"""

import blinksim as bs


@bs.register_algorithm(["allreduce"])
def swap(plan: bs.Plan) -> None:
    """Partners at doubling distances exchange all they have."""
    if plan.n & (plan.n - 1):
        raise bs.InfeasibleError("swap needs a power of two ranks")
    everything = plan.add_chunk(1)
    for bit in range(plan.n.bit_length() - 1):
        for rank in range(plan.n):
            plan.send(rank, rank ^ (1 << bit), chunk=everything, op="reduce", step=bit)


verdict = bs.verify(bs.synthesize("dgx1-v100", "allreduce", "swap").schedule)
print(f"swap is {'right' if verdict.ok else 'wrong'}.")
for best in bs.compare("dgx1-v100", "allreduce", "1KiB:1MiB:x32", ["ring", "swap"]).best():
    print(f"{best.size >> 10:5} KiB: {best.algorithm} is quicker, {best.time_s * 1e6:.1f} us")
