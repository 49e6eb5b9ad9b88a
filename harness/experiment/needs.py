"""The memory and the communication that every strategy needs on a graph, by replays of one rank."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.errors import UserError
from harness.experiment.defaults import Request
from harness.experiment.known_graph import KnownGraph, facts_of_card
from harness.experiment.requests import admit_on_all_grids, fill_batch
from harness.formatting import format_bytes
from harness.graph.shared_blocks import share_blocks
from harness.progress import OnStep, ignore_step, report_steps
from harness.registry import load_strategy, registered_strategies
from harness.replay import Requirements, find_requirements
from harness.spec.dataset import DatasetChoice
from harness.store.catalog import load_card
from harness.store.datasets import is_built, locate_store, open_dataset
from harness.strategy import facts_of

HEADINGS = ("strategy", "best grid", "held", "peak", "received", "worst grid", "received")
"""The columns of the table: the memory of rank 0, and the elements that it receives in an epoch."""


def list_needs(
    root: Path, choice: DatasetChoice, ranks: int, on_step: OnStep = ignore_step
) -> list[Requirements]:
    """Return the needs of each strategy on its best and its worst grid, or the reason why it cannot run.

    Sizes are counted in the store if it is built, and expected from the card otherwise. Strategies are replayed by the
    shapes of their blocks, in the original order of the vertices; those that need the edges read them if the graph is
    built in that order.
    """
    shapes, whole = _look_up(root, choice)
    request = {"dataset": choice.name, "ranks": ranks}
    needs = []
    for point in report_steps(registered_strategies(), lambda point: f"replaying {point.name}", on_step):
        found = _find_needs(root, request, point.name, shapes)
        if found.refused and whole:
            found = _find_needs(root, request, point.name, whole)
        needs.append(found)
    return needs


def tabulate_needs(needs: Sequence[Requirements]) -> list[tuple[str, ...]]:
    """Return the rows of a table for people, with its headings, without the strategies that cannot run."""
    rows: list[tuple[str, ...]] = [HEADINGS]
    for each in needs:
        if each.refused is None:
            rows.append(
                (
                    each.strategy,
                    each.grid or "",
                    format_bytes(each.persistent_bytes or 0),
                    format_bytes(each.peak_bytes or 0),
                    f"{each.elements_received or 0:,}",
                    each.worst_grid or "",
                    f"{each.worst_elements_received or 0:,}",
                )
            )
    return rows


def list_refusals(needs: Sequence[Requirements]) -> list[tuple[str, str]]:
    """Return the strategies that cannot run, with the reasons."""
    return [(each.strategy, each.refused) for each in needs if each.refused is not None]


def _look_up(root: Path, choice: DatasetChoice) -> tuple[KnownGraph, KnownGraph | None]:
    """Return the facts of the graph, and the graph with its edges if it is built in its original order."""
    plain = DatasetChoice(name=choice.name)
    if is_built(root, plain):
        blocks = share_blocks(open_dataset(root, plain))
        facts = facts_of(blocks)
        return KnownGraph(facts, None), KnownGraph(facts, blocks)
    card = load_card(root, choice.name)
    if locate_store(root, card, choice).exists():
        return KnownGraph(replace(facts_of(open_dataset(root, choice)), bounds=None), None), None
    return KnownGraph(facts_of_card(card, root), None), None


def _find_needs(root: Path, request: Request, name: str, graph: KnownGraph) -> Requirements:
    try:
        filled = fill_batch(request, load_strategy(name), graph.facts.vertices)
    except UserError as refusal:  # a broken plugin does not hide the other strategies
        return Requirements(name, refused=str(refusal))
    candidate = admit_on_all_grids(root, name, filled, lambda _: graph, name)
    return find_requirements([candidate])[0]
