"""How nodes are joined: the shape of a fabric, its wiring, and the symmetries of what it joins."""
