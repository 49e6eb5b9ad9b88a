"""What training on a graph would take of a rank, for every strategy: memory that it holds, words that it gets."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from harness.errors import UserError
from harness.experiment.request import make_spec
from harness.registry import load_strategy
from harness.replay.replay import replay
from harness.spec.spec import grid_text
from harness.strategy import Facts, admit


class Needs(NamedTuple):
    """Of rank 0, which has the largest blocks of a graph whose nonzeros lie evenly; or why there is no such run."""

    strategy: str
    grid: str | None = None
    persistent_bytes: int | None = None
    words_received: int | None = None
    """In an epoch."""
    refused: str | None = None


def needs(root: Path, names: Iterable[str], dataset: str, facts: Facts, ranks: int) -> list[Needs]:
    """Of each of these strategies on its first grid for so many ranks, with the model of a spec that names none."""
    return [_needs(root, name, dataset, facts, ranks) for name in names]


def _needs(root: Path, name: str, dataset: str, facts: Facts, ranks: int) -> Needs:
    request = {"strategy": name, "dataset": dataset, "ranks": ranks}
    try:
        spec = make_spec(root, request, name)
        found = replay(admit(load_strategy(name), spec, facts))
    except UserError as refusal:
        return Needs(name, refused=str(refusal))
    received = round(sum(amounts.words_received for amounts in found.entries.values()))
    return Needs(name, grid_text(spec.grid), sum(found.persistent_bytes.values()), received)
