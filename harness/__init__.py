"""Parallel GNN Harness: runs, checks and predicts parallel GNN training strategies.

From Python: `run`, `check`, `predict`, `advise` and `compare` do the same as the commands with their names, and `load`
returns collected tables. Importing this package loads no large library; the functions load them when they are called.
"""

import sys
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

FUNCTIONS = {
    "advise": "harness.cli.commands.advising",
    "check": "harness.cli.commands.checking",
    "compare": "harness.cli.commands.comparing",
    "load": "harness.results.loaded_tables",
    "predict": "harness.cli.commands.predicting",
    "run": "harness.cli.commands.running",
}
"""The functions, with the modules that define them."""

MOVED = {
    "base": "children device documents errors files formatting host_memory locks progress ranges untrusted validation",
    "cli": "commands doctor scaffold",
    "experiment": "external workflow",
    "graph": "fetch sources store",
    "prediction": "replay",
    "report": "figures pack",
    "runtime": "launch slurm",
    "strategy": "models parallel",
}
"""The packages to which modules moved from this one."""


class MovedModules:
    """A finder that says where a module went; it is asked for what no other finder finds."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        parent, _, rest = name.partition(".")
        moved = rest.partition(".")[0]
        for package, modules in MOVED.items():
            if parent == "harness" and moved in modules.split():
                raise ModuleNotFoundError(f"harness.{moved} is now harness.{package}.{moved}", name=name)


sys.meta_path.append(MovedModules)


def __getattr__(name: str) -> Any:
    if name in FUNCTIONS:
        return getattr(import_module(FUNCTIONS[name]), name)
    raise AttributeError(f"module 'harness' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*FUNCTIONS, "__version__"])
