"""Parallel GNN Harness: runs, checks and predicts parallel GNN training strategies.

From Python: `run`, `check`, `predict`, `advise` and `compare` do the same as the commands with their names, and `load`
returns collected tables. Importing this package loads no large library; the functions load them when they are called.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

FUNCTIONS = {
    "advise": "harness.commands.advising",
    "check": "harness.commands.checking",
    "compare": "harness.commands.comparing",
    "load": "harness.results.loaded_tables",
    "predict": "harness.commands.predicting",
    "run": "harness.commands.running",
}
"""The functions, with the modules that define them."""


def __getattr__(name: str) -> Any:
    if name in FUNCTIONS:
        return getattr(import_module(FUNCTIONS[name]), name)
    raise AttributeError(f"module 'harness' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*FUNCTIONS, "__version__"])
