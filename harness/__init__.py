"""Parallel GNN Harness: runs, proves and prices parallel GNN training strategies."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__version__ = "0.1.0"


def load(tables: "str | Path" = "results") -> Any:
    """The collected tables of a folder as pandas frames with short names of columns: `load().runs`, `load().ledger`.

    Every row of every table names its strategy, dataset, ranks, grid and launch.
    """
    return import_module("harness.results.parquet").load(tables)
