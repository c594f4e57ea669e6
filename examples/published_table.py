"""Do the figures of a publication come out, here those of Aurora's projection?

Run it with: python published_table.py
"""

import blinksim as bs

found = bs.reproduce("aurora")
print(found.title)
for row in found.rows()[:4]:
    print(f"  {row['what']}: {row['published']} {row['unit']} published, {row['ours']:.1f} here")
near = sum(abs(row["difference_pct"] or 0) <= 1 for row in found.rows())
print(f"{near} of {len(found.rows())} figures agree within 1 %.")
print(f"Slips in print: {len(found.slips)}, such as")
print(f"  {found.slips[0].partition('. ')[0]}.")
