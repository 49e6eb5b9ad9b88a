"""The functions that rows of claims name, in modules by what they compute from."""

from collections.abc import Callable

from harness.claims.formula import Value
from harness.claims.formulas import lookups, replays, runs

FORMULAS: dict[str, Callable[..., Value]] = {
    name: found
    for module in (lookups, replays, runs)
    for name, found in vars(module).items()
    if hasattr(found, "unit_of_values")
}
