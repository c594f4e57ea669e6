"""Packages that can be called: ``bs.execute(...)`` and ``bs.simulate(...)`` are also the rooms they live in.

Importing ``blinksim.execute`` binds that package to the name under which the function of the same name is promised.
Python lets a module have a class of its own (Language Reference, section 3.3.2.1); this one passes calls on.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])(*arguments, **options)


def make_callable(name: str) -> None:
    """Lets the imported module `name` be called like its function of the same last name."""
    sys.modules[name].__class__ = _Callable
