"""How fast can an allreduce be on a DGX-1, whatever the algorithm, and how can I check that?

Run it with: python proven_bound.py
"""

import blinksim as bs

found = bs.bound("dgx1-v100", "allreduce")
best = found.leading

print(f"No algorithm exceeds {best.rate / 10**9} GB/s, which is {best.rate_GBps:.2f} GB/s of algbw.")
print(f"Why: {best.certificate.words(found.topology)}.")

mistakes = best.check(found.topology, found.collective)
print(f"A check of this certificate, which needs no solver, finds {len(mistakes)} mistakes.")
attained = bs.synthesize(found.topology, "allreduce").rate == best.rate
print(f"A schedule {'reaches it' if attained else 'that reaches it is not known'}.")
