"""Parallel GNN Harness: runs, proves and prices parallel GNN training strategies.

From Python: `load`, `compare`, `run`, `check`, `predict` and `advise` (`harness.api`). Nothing heavy is imported before
a function is called.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

FUNCTIONS = ("advise", "check", "compare", "load", "predict", "run")
ROOMS = ("check", "predict", "run")
"""The functions whose names are also those of rooms: a call of the room is a call of the function."""


class CallableRoom(ModuleType):
    """A room that is called as the function of its name."""

    def __call__(self, *args: Any, **named: Any) -> Any:
        return getattr(import_module("harness.api"), self.__name__.rpartition(".")[2])(*args, **named)


class House(ModuleType):
    """This package. The import system binds each room here once the room is loaded."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ROOMS and isinstance(value, ModuleType):
            value.__class__ = CallableRoom
        super().__setattr__(name, value)


def __getattr__(name: str) -> Any:
    if name in ROOMS:
        return import_module(f"harness.{name}")
    if name in FUNCTIONS:
        return getattr(import_module("harness.api"), name)
    raise AttributeError(f"module 'harness' has no attribute {name!r}")


sys.modules[__name__].__class__ = House
