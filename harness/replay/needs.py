"""What training on a graph would take of a rank, for every strategy: memory that it holds, words that it gets."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from harness.errors import UserError
from harness.experiment.defaults import make_spec
from harness.registry import load_strategy
from harness.replay.replay import replay
from harness.spec.spec import Spec, grid_text
from harness.strategy import Facts, admit


class Needs(NamedTuple):
    """Of rank 0, which has the largest blocks of a graph whose nonzeros lie evenly; or why there is no such run."""

    strategy: str
    grid: str | None = None
    """The one on which it gets the fewest words; the first of several."""
    persistent_bytes: int | None = None
    words_received: int | None = None
    """In an epoch."""
    grids: int | None = None
    """On how many it can train."""
    worst_grid: str | None = None
    worst_words_received: int | None = None
    refused: str | None = None


def needs(root: Path, names: Iterable[str], dataset: str, facts: Facts, ranks: int) -> list[Needs]:
    """Of each of these strategies on its best grid for so many ranks, with the model of a spec that names none."""
    return [_needs(root, name, dataset, facts, ranks) for name in names]


class _OnGrid(NamedTuple):
    words: int
    grid: str
    persistent_bytes: int


def _needs(root: Path, name: str, dataset: str, facts: Facts, ranks: int) -> Needs:
    found, refusals = [], []
    request = {"strategy": name, "dataset": dataset, "ranks": ranks}
    try:
        grids = load_strategy(name).grids(ranks)
    except UserError as refusal:  # a plugin that is broken keeps none of the others from being listed
        return Needs(name, refused=str(refusal))
    for grid in [{"grid": grid} for grid in grids] or [{}]:  # a spec says: no grid
        try:
            found.append(_on_grid(name, make_spec(root, request | grid, name), facts))
        except UserError as refusal:
            refusals.append(str(refusal))
    if not found:
        return Needs(name, refused=refusals[0])
    best, worst = min(found, key=lambda one: one.words), max(found, key=lambda one: one.words)
    return Needs(name, best.grid, best.persistent_bytes, best.words, len(found), worst.grid, worst.words)


def _on_grid(name: str, spec: Spec, facts: Facts) -> _OnGrid:
    found = replay(admit(load_strategy(name), spec, facts))
    received = round(sum(amounts.words_received for amounts in found.entries.values()))
    return _OnGrid(received, grid_text(spec.grid), sum(found.persistent_bytes.values()))
