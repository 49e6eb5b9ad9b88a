"""The scales of an experiment: the runs of a paper, runs for one machine, and tiny runs that test the experiment.

An experiment's file lists the runs of the scales `laptop`, `emulated` and `published`. The runs of `emulated` record a
tape, from which `harness runs emulate` computes their times. The runs of the scale `tiny` are derived from `laptop`:

1. The graph is a tiny one of the same kind, in the same order.
2. At most 4 ranks train. A run with more ranks uses the strategy's default grid instead of its own.
3. At most 3 epochs train, of which at most 1 is warm-up. Mini-batches have at most 64 vertices.
4. A target accuracy is at most 10 %, which a tiny run reaches, so figures of the time to a target are not empty.
"""

from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.experiment.defaults import BEST, LARGEST, count_ranks, read_choice
from harness.experiment.expand import combine
from harness.experiment.experiment_file import Experiment, Runs
from harness.graph.cards.catalog import load_card

MAX_RANKS = 4
GRID_WORDS = ("all", BEST, LARGEST)
"""The values of `grid` that fit any number of ranks."""
MAX_EPOCHS = 3
"""The most epochs of a tiny training, warm-up included. Training curves need as many to show a line."""
MAXIMA = {"warmup": 1, "evaluate_every": 1, "batch": 64, "target": 0.1}
"""The largest values of a tiny training."""
SCALE_KEYS = {"published": "the runs of a paper", "emulated": "runs with a tape"}
"""The optional keys of a file that list the runs of a scale, and what they hold."""
TINY_GRAPHS = {"lattice": "tiny-lattice", "power": "tiny-rmat", "rmat": "tiny-rmat"}
"""The tiny graph by the nature or source kind of a dataset; all others use one with clusters."""


def select_scale(root: Path, experiment: Experiment, scale: str) -> Experiment:
    """Return the experiment with the runs of one scale."""
    if scale == "laptop":
        return experiment
    changes: dict[str, Any] = {"name": f"{experiment.name}-{scale}", "published": None, "emulated": None}
    if scale == "tiny":
        return experiment.model_copy(update={**changes, "runs": _make_tiny_runs(root, experiment)})
    listed: Runs | None = getattr(experiment, scale)
    if listed is None:
        raise UserError(
            f"{experiment.name} has no scale {scale}: its file lacks the key `{scale}`, {SCALE_KEYS[scale]}. "
            "The scales laptop and tiny need no such key."
        )
    runs = [_with_tape(entry) for entry in listed.runs] if scale == "emulated" else listed.runs
    return experiment.model_copy(update={**changes, "machine": listed.machine, "runs": runs})


def _with_tape(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of runs that record a tape. The spec refuses a `measure` that is not a mapping."""
    measure = entry.get("measure", {})
    return {**entry, "measure": {**measure, "tape": True} if isinstance(measure, dict) else measure}


def _make_tiny_runs(root: Path, experiment: Experiment) -> list[dict[str, Any]]:
    places = ((entry, f"{experiment.name}, runs[{number}]") for number, entry in enumerate(experiment.runs))
    return [_make_tiny(root, request, where) for entry, where in places for request in combine(entry, where)]


def _make_tiny(root: Path, request: dict[str, Any], where: str) -> dict[str, Any]:
    choice, ranks = read_choice(request, "dataset", where), count_ranks(request, where)
    grid = request.get("grid")
    fits = ranks <= MAX_RANKS or grid in GRID_WORDS
    return {
        **request,
        "dataset": {**choice, "name": _find_tiny_graph(root, choice["name"])},
        "ranks": min(ranks, MAX_RANKS),
        "grid": grid if fits else None,
        "training": _shorten_training(request.get("training", {})),
    }


def _shorten_training(training: Any) -> Any:
    """Return the training with smaller numbers. The spec refuses what is not a mapping of numbers."""
    if not isinstance(training, dict):
        return training
    filled = {"epochs": MAX_EPOCHS, "warmup": MAXIMA["warmup"], **training}
    short = {
        key: min(value, MAXIMA[key]) if key in MAXIMA and isinstance(value, int | float) else value
        for key, value in filled.items()
    }
    if isinstance(short["epochs"], int) and isinstance(short["warmup"], int):
        short["epochs"] = min(short["epochs"], MAX_EPOCHS - short["warmup"])
    return short


def _find_tiny_graph(root: Path, name: str) -> str:
    card = load_card(root, name)
    if card.directed:
        return "directed-toy"
    if card.task == "multi-label":
        return "tiny-topics"
    kind = card.nature or getattr(card.source, "nature", None) or card.source.kind
    return TINY_GRAPHS.get(str(kind), "tiny-sbm")
