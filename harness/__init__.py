"""Parallel GNN Harness: runs, checks and predicts parallel GNN training strategies.

From Python: `load`, `compare`, `run`, `check`, `predict` and `advise` (`harness.commands` and `harness.api`). Importing
this package loads no large library; the functions load them when they are called.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

FUNCTIONS = {
    "advise": "harness.api",
    "check": "harness.api",
    "compare": "harness.commands.comparing",
    "load": "harness.api",
    "predict": "harness.api",
    "run": "harness.commands.running",
}
"""The functions, with the modules that define them."""
CALLABLE_PACKAGES = ("check", "predict", "run")
"""The functions that share their names with a package: calling the package calls the function."""


class CallablePackage(ModuleType):
    """A package that is called as the function of the same name."""

    def __call__(self, *args: Any, **named: Any) -> Any:
        name = self.__name__.rpartition(".")[2]
        return getattr(import_module(FUNCTIONS[name]), name)(*args, **named)


class HarnessPackage(ModuleType):
    """This package. The import system binds each subpackage here once it is loaded."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in CALLABLE_PACKAGES and isinstance(value, ModuleType):
            value.__class__ = CallablePackage
        super().__setattr__(name, value)


def __getattr__(name: str) -> Any:
    if name in CALLABLE_PACKAGES:
        return import_module(f"harness.{name}")
    if name in FUNCTIONS:
        return getattr(import_module(FUNCTIONS[name]), name)
    raise AttributeError(f"module 'harness' has no attribute {name!r}")


sys.modules[__name__].__class__ = HarnessPackage
