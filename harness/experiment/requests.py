"""Requests become specs: a search replaces `grid: best` and every `largest`, and defaults fill the missing keys."""

from collections.abc import Mapping
from math import inf
from operator import itemgetter
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.base.formatting import GB
from harness.base.validation import format_value
from harness.experiment.defaults import BEST, Request, count_ranks, fill_defaults, read_choice
from harness.experiment.known_graph import GraphLookup, KnownGraph, facts_of_card
from harness.experiment.largest import replace_largest
from harness.graph.cards.catalog import load_card
from harness.registry import load_strategy
from harness.spec.machine_card import load_machine_card
from harness.spec.spec import Spec
from harness.strategy import Candidate, Ready, Strategy, admit

BATCH = 1024
"""The size of mini-batches where strategies are compared, unless the settings have training.batch."""


def make_spec(root: Path, request: Request, where: str) -> Spec:
    """Return the spec of a request. `where` begins the messages of errors."""
    choices = {key: read_choice(request, key, where) for key in ("strategy", "dataset")}
    resolved = {**request, **choices}
    if resolved.get("grid") == BEST:
        resolved = choose_best_grid(root, resolved, where)
    return fill_defaults(root, replace_largest(root, resolved, where), where)


def nest_settings(settings: Mapping[str, Any]) -> Request:
    """Return the request of dotted keys: `training.epochs` becomes the key `epochs` of `training`."""
    request: Request = {}
    for path, value in settings.items():
        *parents, key = path.split(".")
        place = request
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise UserError(
                    f"{format_value(path)} = {format_value(value)}: {parent} has no keys of its own."
                )
        place[key] = value
    return request


def fill_batch(request: Request, strategy: type[Strategy], vertices: int) -> Request:
    """Return the request, with at most `BATCH` vertices in a mini-batch if a strategy needs this and none are given."""
    if not strategy.mini_batches:
        return request
    return {**request, "training": {"batch": min(BATCH, vertices), **request.get("training", {})}}


def choose_best_grid(root: Path, request: Request, where: str) -> Request:
    """Return the request on the fitting grid with the shortest predicted epoch, by the dataset and machine cards."""
    from harness.prediction.epoch import check_card, predict

    card = load_machine_card(root, request.get("machine", "local"))
    check_card(card)
    name = request["strategy"]["name"]
    if len(only := load_strategy(name).grids(count_ranks(request, where))) == 1:
        return {**request, "grid": only[0]}  # nothing to search, also if sizes depend on unknown edges
    expected = KnownGraph(facts_of_card(load_card(root, request["dataset"]["name"]), root), None)
    candidate = admit_on_all_grids(root, name, _without_memory(request), lambda _: expected, where)
    if not candidate.ready:
        raise UserError(f"{where}: grid = {BEST}: {candidate.reason}")
    predictions = [(predict(ready, card, ranks=[0]), ready.strategy.spec.grid) for ready in candidate.ready]
    budget = inf if card.memory_gb is None else card.memory_gb * GB
    smallest = min(prediction.peak_bytes for prediction, _ in predictions)
    if smallest > budget:
        raise UserError(
            f"{where}: grid = {BEST}: {name} takes {smallest / GB:.3g} GB a rank on its smallest grid, and "
            f"{card.name} has {card.memory_gb:.3g}: take more ranks."
        )
    fitting = [
        (prediction.seconds.value, grid)
        for prediction, grid in predictions
        if prediction.peak_bytes <= budget
    ]
    return {**request, "grid": dict(min(fitting, key=itemgetter(0))[1])}


def admit_on_all_grids(
    root: Path, name: str, request: Request, look_up: GraphLookup, where: str
) -> Candidate:
    """Return the strategy on each grid on which it can train the request, or the reason why no grid works."""
    ready, reasons = list[Ready](), list[str]()
    try:
        strategy = load_strategy(name)
        grids = strategy.grids(count_ranks(request, where))
    except UserError as refusal:  # a broken plugin does not hide the other strategies
        return Candidate(name, [], str(refusal))
    for grid in grids:
        choice = {**request.get("strategy", {}), "name": name}
        try:
            spec = make_spec(root, {**request, "strategy": choice, "grid": grid}, where)
            graph = look_up(spec.dataset)
            ready.append(Ready(admit(strategy, spec, graph.facts), graph.blocks))
        except UserError as refusal:
            reasons.append(str(refusal))
    none = f"{name} has no grid of {count_ranks(request, where)} ranks."
    return Candidate(name, ready, reasons[0] if reasons else none)


def _without_memory(request: Request) -> Request:
    return {key: value for key, value in request.items() if key != "memory_gb"}
