"""The scales of an experiment: the runs of a paper, runs for one machine, and tiny runs that test the experiment.

A file lists the runs of the scales `laptop`, `emulated` and `published`. The runs of `emulated` keep a tape. Their
times are those of `harness emulate`, and stand beside those of `laptop`. The runs of the scale `tiny` follow from
`laptop`:

1. The graph is a tiny one of the same kind, in the same order.
2. At most 4 ranks train. A run of more ranks leaves its grid for the first of the strategy.
3. At most 3 epochs train, of which at most 1 is warm-up. Mini-batches have at most 64 vertices.
4. A target accuracy is at most 10 %, which a tiny run reaches: a figure of times to a target has something to show.
"""

from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.experiment.defaults import BEST, LARGEST, named, ranks_of
from harness.experiment.expand import Experiment, Runs, combinations
from harness.store.catalog import load_card

MOST_RANKS = 4
IN_A_WORD = ("all", BEST, LARGEST)
"""The grids that exist for any number of ranks."""
EPOCHS = 3
"""The most epochs of a tiny training, warm-up included: with fewer, a course of training has no line."""
MOST = {"warmup": 1, "evaluate_every": 1, "batch": 64, "target": 0.1}
"""The largest numbers of a tiny training."""
LISTED = {"published": "the runs of a paper", "emulated": "runs with a tape"}
"""What the keys of scales hold that a file may lack."""
TINY = {"lattice": "tiny-lattice", "power": "tiny-rmat", "rmat": "tiny-rmat"}
"""The tiny graphs of a nature, or of a kind of source; those of the others have clusters."""


def at_scale(root: Path, experiment: Experiment, scale: str) -> Experiment:
    """The experiment with the runs of one scale."""
    if scale == "laptop":
        return experiment
    alone: dict[str, Any] = {"name": f"{experiment.name}-{scale}", "published": None, "emulated": None}
    if scale == "tiny":
        return experiment.model_copy(update={**alone, "runs": _tiny_runs(root, experiment)})
    listed: Runs | None = getattr(experiment, scale)
    if listed is None:
        raise UserError(
            f"{experiment.name} has no scale {scale}: its file lacks the key `{scale}`, {LISTED[scale]}. "
            "The scales laptop and tiny need no such key."
        )
    runs = [_taped(entry) for entry in listed.runs] if scale == "emulated" else listed.runs
    return experiment.model_copy(update={**alone, "machine": listed.machine, "runs": runs})


def _taped(entry: dict[str, Any]) -> dict[str, Any]:
    """A run that keeps a tape; anything but a mapping of measurements is left for the spec to refuse."""
    asked = entry.get("measure", {})
    return {**entry, "measure": {**asked, "tape": True} if isinstance(asked, dict) else asked}


def _tiny_runs(root: Path, experiment: Experiment) -> list[dict[str, Any]]:
    places = ((entry, f"{experiment.name}, runs[{number}]") for number, entry in enumerate(experiment.runs))
    return [_tiny(root, request, where) for entry, where in places for request in combinations(entry, where)]


def _tiny(root: Path, request: dict[str, Any], where: str) -> dict[str, Any]:
    choice, ranks = named(request, "dataset", where), ranks_of(request, where)
    grid = request.get("grid")
    fits = ranks <= MOST_RANKS or grid in IN_A_WORD
    return {
        **request,
        "dataset": {**choice, "name": _tiny_graph(root, choice["name"])},
        "ranks": min(ranks, MOST_RANKS),
        "grid": grid if fits else None,
        "training": _tiny_training(request.get("training", {})),
    }


def _tiny_training(training: Any) -> Any:
    """The training with smaller numbers; anything but a mapping of numbers is left for the spec to refuse."""
    if not isinstance(training, dict):
        return training
    asked = {"epochs": EPOCHS, "warmup": MOST["warmup"], **training}
    few = {
        key: min(value, MOST[key]) if key in MOST and isinstance(value, int | float) else value
        for key, value in asked.items()
    }
    if isinstance(few["epochs"], int) and isinstance(few["warmup"], int):
        few["epochs"] = min(few["epochs"], EPOCHS - few["warmup"])
    return few


def _tiny_graph(root: Path, name: str) -> str:
    card = load_card(root, name)
    if card.directed:
        return "directed-toy"
    if card.task == "multi-label":
        return "tiny-topics"
    kind = card.nature or getattr(card.source, "nature", None) or card.source.kind
    return TINY.get(str(kind), "tiny-sbm")
