"""A piece of work for other processes, in a module that imports nothing large: each of them imports it first."""

import os


def double(number: int) -> int:
    """Twice the number; its process dies at 3 where the environment says so."""
    if number == 3 and os.environ.get("DIE_AT_THREE"):
        os._exit(1)
    return 2 * number
