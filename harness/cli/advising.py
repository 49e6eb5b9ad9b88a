"""harness advise: ranks strategies and grids for a graph on a machine by predicted time."""

import argparse
import os
import shlex
from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from harness.cli.options import (
    ProgressLine,
    Verbs,
    add_verb,
    format_columns,
    format_paragraph,
    int_in,
    print_answer,
    print_progress,
    rank_count,
)
from harness.cli.predicting import (
    CARD_NOTE,
    add_prediction_options,
    describe_sizes,
    format_number,
    format_prediction,
    load_chosen_card,
    make_document,
    make_graph_lookup,
    make_predictor,
    make_request,
)
from harness.formatting import GB
from harness.spec.root import find_results_folder, find_root
from harness.spec.spec import format_grid

if TYPE_CHECKING:
    from harness.experiment.known_graph import GraphLookup
    from harness.predict.advice import Advice, Option, TunedOption
    from harness.spec.machine_card import MachineCard
    from harness.strategy import Candidate, Facts

DEFAULT_SECONDS = 60
"""The default time limit of advice."""
PRINTING_SECONDS = 1.0
"""The seconds of the time limit that are reserved for printing the answer."""
PROCESS_BYTES = 6 * GB
"""The memory that a predicting process may need, for a built graph, results that ranks share, and caches."""


def add_verbs(verbs: Verbs) -> None:
    advise = add_verb(
        verbs,
        "advise",
        _print_advice,
        "Find the fastest strategies and grids for a graph on a machine.",
        "Predicts every strategy on every grid of P ranks with the same model. Ranks full-graph training by the time "
        "of an epoch, and mini-batch training by the time per training vertex.",
    )
    advise.add_argument("--ranks", type=rank_count, required=True, metavar="P", help="the number of ranks")
    advise.add_argument("--model", metavar="KIND", help="gcn, sage or gat (default: gcn)")
    advise.add_argument(
        "--memory",
        type=float,
        metavar="GB",
        help="the memory of a rank (default: the memory on the machine's card)",
    )
    advise.add_argument(
        "--accuracy",
        choices=("exact", "estimator"),
        help="exact: only strategies with the same results as serial training; estimator: also those with unbiased "
        "estimates of them",
    )
    advise.add_argument(
        "--partition",
        metavar="NAME",
        help="the partition for strategies that split the vertices into parts (default: blocks of equal size)",
    )
    advise.add_argument(
        "--tune",
        type=int_in(1, 100),
        metavar="N",
        help="run the N best of each list on this machine for a few epochs, and compare prediction and measurement",
    )
    time = advise.add_mutually_exclusive_group()
    time.add_argument(
        "--within",
        type=int_in(1, 10**6),
        default=DEFAULT_SECONDS,
        metavar="SECONDS",
        help=f"the time limit; strategies that take longer to predict are only listed (default: {DEFAULT_SECONDS})",
    )
    time.add_argument("--all", action="store_true", help="predict every strategy, however long it takes")
    add_prediction_options(advise)


def _print_advice(options: argparse.Namespace) -> int:
    started = monotonic()  # the imports below take seconds of the time limit
    from harness.predict.advice import advise, tune_options
    from harness.predict.prediction import check_card
    from harness.spec.dataset import DatasetChoice
    from harness.validation import validate

    root = find_root(options.root)
    card, look_up = load_chosen_card(root, options), make_graph_lookup(root, options)
    check_card(card)
    if options.memory is not None:
        card = card.model_copy(update={"memory_gb": options.memory})
    facts = look_up(validate(DatasetChoice, {"name": options.dataset}, "--dataset")).facts
    seconds = inf if options.all else max(0.0, options.within - PRINTING_SECONDS - (monotonic() - started))
    # Twins may have to be built first, which must not be interrupted.
    time = (inf, 0) if options.twins else (seconds, _count_processes())
    with ProgressLine() as progress:
        found = _list_candidates(root, options, look_up, facts)
        advice = advise(found, card, make_predictor(root, options), *time, progress)
    document, page = _make_advice_document(advice, card), _format_advice(options, facts, card, advice)
    if options.tune:
        measured = list(
            tune_options(root, find_results_folder(root) / "runs", options.tune, advice, print_progress)
        )
        rows = [TUNING_TITLES, *map(_format_tuned_cells, measured)]
        document["tuned"] = [each._asdict() for each in measured]
        page += f"\n\nPredicted for {card.name}, measured on this machine\n\n{format_columns(rows)}"
    print_answer(options, document, page)
    return 0


TUNING_TITLES = ("strategy", "grid", "predicted ms", "measured ms", "predicted over measured", "")


def _format_tuned_cells(each: "TunedOption") -> tuple[str, ...]:
    measured = f"{1e3 * each.measured:.3g}" if each.measured else ""
    ratio = f"{each.predicted / each.measured:.2f}" if each.measured else ""
    why = "" if each.measured else each.why
    return each.strategy, each.grid, f"{1e3 * each.predicted:.3g}", measured, ratio, why


def _count_processes() -> int:
    """Return the number of processes that predict in parallel: one per core, if there is enough memory."""
    from harness.results.parquet import find_available_bytes

    return max(1, min(len(os.sched_getaffinity(0)), find_available_bytes() // PROCESS_BYTES))


def _list_candidates(
    root: Path, options: argparse.Namespace, look_up: "GraphLookup", facts: "Facts"
) -> "Iterator[Candidate]":
    """Yield the strategies with an accepted promise, each on the grids that admit the request."""
    from harness.api import AdviceQuery, list_candidates
    from harness.predict.advice import list_accepted_promises

    request = make_request(options, options.ranks)
    if options.model:
        request["model"] = {**request.get("model", {}), "kind": options.model}
    query = AdviceQuery(list_accepted_promises(options.accuracy), options.partition, "the options")
    return list_candidates(root, request, look_up, facts, query)


def _make_advice_document(advice: "Advice", card: "MachineCard") -> dict[str, Any]:
    from harness.predict.advice import find_ties

    def list_options(choices: "Sequence[Option]", *, ranked: bool = True) -> list[dict[str, Any]]:
        tied = list(find_ties(choices, card)) if ranked else [False] * len(choices)
        return [
            {
                "strategy": each.strategy.name,
                "grid": each.strategy.grid,
                "ties_with_the_first": tie,
                "seconds_per_vertex": each.cost,
                **make_document(each.prediction),
            }
            for each, tie in zip(choices, tied, strict=True)
        ]

    return {
        "full_graph": list_options(advice.full_graph),
        "mini_batch": list_options(advice.mini_batch),
        "too_large": list_options(advice.too_large, ranked=False),
        "refused": [vars(refusal) for refusal in advice.refused],
        "too_slow": [
            {"strategy": name, "estimated_seconds": seconds} for name, seconds in advice.too_slow.items()
        ],
        "partly": [{"strategy": name, **partly._asdict()} for name, partly in advice.partly.items()],
    }


def _format_advice(options: argparse.Namespace, facts: "Facts", card: "MachineCard", advice: "Advice") -> str:
    lines = [
        f"{options.dataset} on {card.name}, {options.ranks} ranks; sizes {describe_sizes(options, facts)}"
    ]
    for name, choices in (
        ("The full graph, by the time of an epoch", advice.full_graph),
        ("Mini-batches, by the time for each training vertex", advice.mini_batch),
    ):
        if choices:
            lines += [
                "",
                name,
                "",
                format_columns(list(_format_options(choices, card))),
                "",
                *_describe_sensitivity(choices, card),
            ]
    if advice.full_graph or advice.mini_batch:
        lines += ["", format_paragraph(LEGEND)]
    if not (facts.exact or options.twins):
        lines += ["", format_paragraph(CARD_NOTE)]
    for each in advice.too_large:
        peak = f"{each.prediction.peak_bytes / GB:.3g} GB of {card.memory_gb:g}"
        lines += ["", f"{each.strategy.name}: too large, {peak} on its smallest grid"]
    lines += _list_unpredicted(options, advice)
    if advice.refused:
        reasons = defaultdict[str, list[str]](list)
        for refusal in advice.refused:
            reasons[refusal.reason].append(refusal.strategy)
        lines += ["", "No prediction"]
        lines += [format_paragraph(f"{', '.join(names)}: {reason}") for reason, names in reasons.items()]
    return "\n".join(lines)


def _list_unpredicted(options: argparse.Namespace, advice: "Advice") -> list[str]:
    """Return lines about strategies that were not fully predicted in time, and the command that includes them."""
    lines = list[str]()
    if advice.partly:
        lines += [
            "",
            f"Predicted in part within {options.within} s: the best grids so far, some from a single rank",
        ]
        lines += [f"  {name}: {predicted} of {of} grids" for name, (predicted, of) in advice.partly.items()]
    if left_out := [name for name in advice.too_slow if name not in advice.partly]:
        lines += ["", f"Left out: not enough time to predict them within {options.within} s"]
        lines += [f"  {name}: about {advice.too_slow[name]:.0f} s" for name in left_out]
    if advice.too_slow:
        lines += ["This command includes all grids of all strategies:", f"  {_make_full_command(options)}"]
    return lines


def _make_full_command(options: argparse.Namespace) -> str:
    """Return the same command with --all."""
    words = ["harness", "advise", "--dataset", options.dataset, "--machine", options.machine]
    words += ["--ranks", str(options.ranks)]
    for name in ("root", "model", "memory", "accuracy", "partition", "tune"):
        if (value := getattr(options, name)) is not None:
            words += [f"--{name}", str(value)]
    for setting in options.set:
        words += ["--set", setting]
    words += [f"--{name.replace('_', '-')}" for name in ("from_card", "json") if getattr(options, name)]
    return shlex.join([*words, "--all"])


LEGEND = (
    "= ties with the first: constants within their intervals, or the error of the model, can reverse the order. "
    "~ approximates serial training and is not an unbiased estimate of it (--accuracy leaves it out). waits: the share "
    "of the epoch in which a rank waits for messages. words: received by a rank per epoch. GB: the peak memory. "
    "limited by: the constant of the machine card with the largest share of the epoch."
)


def _format_options(choices: "Sequence[Option]", card: "MachineCard") -> "Iterator[tuple[str, ...]]":
    from harness.predict.advice import find_ties

    batches = choices[0].mini_batches
    cost = ["ns/vertex"] if batches else []
    yield ("", "strategy", "grid", "ms", "between", *cost, "waits", "words", "GB", "limited by")
    for choice, tie in zip(choices, find_ties(choices, card), strict=True):
        epoch, between, *others = format_prediction(choice.prediction, card)
        vertex = [format_number(1e9 * choice.cost)] if batches else []
        name = f"{choice.strategy.name}{' ~' * (choice.strategy.effective_promise == 'approximate')}"
        grid = format_grid(choice.strategy.spec.grid)
        yield "=" if tie else "", name, grid, epoch, between, *vertex, *others


def _describe_sensitivity(choices: "Sequence[Option]", card: "MachineCard") -> list[str]:
    """Return a line about the constants that could put the best other strategy first."""
    from harness.predict.advice import compare_options

    first, *rest = choices
    other = next((each for each in rest if each.strategy.name != first.strategy.name), None)
    if other is None:
        return []
    constants = compare_options(first, other, card)[1]
    if not constants:
        return [
            f"No single constant of the card, varied within its interval, makes {other.strategy.name} faster than "
            f"{first.strategy.name}."
        ]
    intervals = "their intervals" if len(constants) > 1 else "its interval"
    return [
        format_paragraph(
            f"Varied within {intervals}, {' or '.join(constants)} can make {other.strategy.name} faster than "
            f"{first.strategy.name}."
        )
    ]
