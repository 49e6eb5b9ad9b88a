"""The conformance suite: runs the cases of a strategy, and makes every check of their results.

It treats built-in strategies and plugins alike, and knows none by name.
"""

import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from harness.base.device import GPU
from harness.base.errors import RunError, UserError
from harness.base.progress import OnStep, ignore_step, report_steps
from harness.base.validation import unknown_name_error
from harness.conformance.batches import (
    check_unbiased_batches,
    check_unbiased_layers,
    check_unbiased_messages,
    find_multiplier,
)
from harness.conformance.case import DISTANCES, Case, RankResult, compute_nearby_losses, train_rank
from harness.conformance.case_list import EPOCHS, HERE, CaseList, Extent, list_cases, make_case
from harness.conformance.checks import (
    Finding,
    check_all_memory,
    check_gradient_slopes,
    check_ledger_sums,
    check_memory,
    check_remote_rows,
    check_repeatable,
    check_replay,
    check_serial,
    check_wire_rounding,
    check_words,
    check_words_bound,
    report_broken,
    report_crash,
)
from harness.conformance.mismatch import Mismatch, find_own_frame
from harness.conformance.reference import Trained, make_recurrence, train_densely
from harness.conformance.samples import check_samples, choose_cases
from harness.graph.store.memory_store import MemoryStore
from harness.registry import load_strategy
from harness.spec.machine_card import Machine
from harness.strategy import Promise, Strategy, admit, facts_of

Runner = Callable[..., list[Any]]
"""`run(world, function, *arguments)` returns the function's results on every rank of a world."""

ON_GPUS = Machine(name="check on GPUs", device=GPU, engine="nccl")
REPEATED, UNBIASED = COSTLY = ("same seed, same bits", "unbiased")
"""The checks that need a second training, or hundreds of samples on the host."""
DRAWS: dict[Extent, int] = {"quick": 1000, "usual": 8000, "full": 8000}
"""About how many mini-batches are drawn to compare them with a reference sampler."""


def check(  # noqa: PLR0913  independent choices, the last two by name
    name: str,
    run: Runner,
    extent: Extent = "usual",
    machine: Machine = HERE,
    most: int | None = None,
    on_case: OnStep = ignore_step,
    *,
    known: Collection[str] = (),
    only: str | None = None,
) -> Iterator[Finding]:
    """Make every check on every case of a strategy, and yield the findings; `run` starts ranks on the machine.

    Worlds have at most `most` ranks, for example one for each GPU. Checks in COSTLY that are `known` to pass are
    skipped. With `only`, the case of this name is tried, or the cases whose names contain it.

    A quick check tries few grids, combines settings, and examines the first and the last rank alternately. A full check
    tries every grid of more sizes.
    """
    found = find_cases(name, extent, most)
    chosen = select_cases(found, only)
    compared = {case.name for case in choose_cases(chosen.trained)}
    tried = [
        _Attempt(
            replace(case, spec=case.spec.model_copy(update={"machine": machine})),
            range(case.spec.ranks) if extent != "quick" else [(case.spec.ranks - 1) * (number % 2)],
            DRAWS[extent] * (case.name in compared),
        )
        for number, case in enumerate(found.trained)
        if case in chosen.trained
    ]
    yield from _check_in_turn(tried, run, known, on_case)
    yield from map(_check_refusal, chosen.impossible)


def find_cases(name: str, extent: Extent, most: int | None = None) -> CaseList:
    """Return the cases of a check. An error of the strategy is a UserError with the author's line."""
    strategy = load_strategy(name)
    try:
        return list_cases(name, strategy, extent, most)
    except UserError:
        raise
    except Exception as error:
        if frame := find_own_frame(strategy, _format_trace(error)):
            message = (
                f"{strategy.name} raised {type(error).__name__}: {error} before any training, in {frame}."
            )
            raise UserError(message) from error
        raise


def select_cases(found: CaseList, only: str | None) -> CaseList:
    """Return the case of the name `only`, or the cases whose names contain it; None selects all."""
    if not only:
        return found
    chosen = _choose_names([case.name for case in (*found.trained, *found.impossible)], only)
    trained, impossible = ([case for case in cases if case.name in chosen] for cases in found[:2])
    return found._replace(trained=trained, impossible=impossible)


class _Attempt(NamedTuple):
    """A case to try."""

    case: Case
    examined: Sequence[int]
    """The ranks that are replayed and whose memory is searched."""
    draws: int = 0
    """About how many mini-batches are drawn and compared with the strategy's reference sampler; 0 to test no draws."""


def _check_in_turn(
    tried: Sequence[_Attempt], run: Runner, known: Collection[str], on_case: OnStep
) -> Iterator[Finding]:
    """Check cases one after the other. The next case is trained during the checks of a case."""
    thread, is_interrupted = ThreadPoolExecutor(1), False

    def run_in_turn(*job: Any) -> list[Any]:
        return thread.submit(run, *job).result()

    try:
        trainings = (thread.submit(_train_case, attempt, run) for attempt in tried)
        following = next(trainings, None)
        for attempt in report_steps(tried, lambda attempt: attempt.case.name, on_case):
            training, following = following, next(trainings, None)
            assert training
            yield from _make_checks(attempt, run_in_turn, training.result, known)
    except KeyboardInterrupt:
        is_interrupted = True
        raise
    finally:  # after an interrupt, the caller ends ranks that may hang
        thread.shutdown(wait=not is_interrupted, cancel_futures=True)


def _train_case(attempt: _Attempt, run: Runner) -> list[RankResult]:
    """Return the results of every rank. Raises UserError if the strategy refuses the case."""
    case, examined, _ = attempt
    return run(case.spec.ranks, train_rank, case, _count_epochs(case.strategy()), None, (), examined)


def _choose_names(names: Sequence[str], only: str) -> set[str]:
    """Return the name `only`, or all names that contain it."""
    chosen = {name for name in names if name == only} or {name for name in names if only in name}
    if not chosen:
        raise unknown_name_error("case", only, list(names))
    return chosen


def check_smallest(name: str, run: Runner, ranks: int, machine: Machine) -> Iterator[Finding]:
    """Make all but the COSTLY checks on a single case of a strategy: a small training on all of these ranks."""
    case = make_case(name, load_strategy(name).grids(ranks)[0], "directed, prime, partial mask")
    spec = case.spec.model_copy(update={"machine": machine})
    yield from check_case(replace(case, spec=spec), run, [0], COSTLY)


def check_case(
    case: Case, run: Runner, examined: Sequence[int], known: Collection[str] = ()
) -> Iterator[Finding]:
    """Train a case, and yield a finding for each check. Ranks `examined` are replayed, and their memory is searched."""
    attempt = _Attempt(case, examined, DRAWS["quick"] * bool(choose_cases([case])))
    yield from _make_checks(attempt, run, partial(_train_case, attempt, run), known)


def _make_checks(
    attempt: _Attempt, run: Runner, train: Callable[[], list[RankResult]], known: Collection[str]
) -> Iterator[Finding]:
    """Yield a finding for each check on the results of `train`.

    An error of the strategy fails the check in which it occurs. The other checks are made all the same.
    """
    case, examined, draws = attempt
    try:
        strategy = case.strategy()
    except UserError as refusal:
        yield Finding("refused with a reason", case.name, True, str(refusal))
        return
    except Exception as error:
        yield _report_error("refused with a reason", case, "before training", error)
        return
    try:
        ranks = train()
    except Exception as error:
        yield _report_error("trains", case, f"training {_count_epochs(strategy)} epochs", error)
        return

    def check_again() -> Finding:
        composed_from = 0 if case.spec.machine.engine == "gloo" else None
        chosen = [rank.chosen for rank in ranks]
        again = run(case.spec.ranks, train_rank, case, _count_epochs(strategy), composed_from, chosen, ())
        return check_repeatable(case, ranks, again)

    find = partial(_find_or_report_error, case)
    yield from find(
        "losses equal serial", "serial training", lambda: _check_training(case, strategy, ranks, run)
    )
    if draws and UNBIASED not in known:
        yield from find("unbiased", "its samples", lambda: _check_draws(case, strategy, draws))
    yield from find("elements equal the formula", "`words`", lambda: [check_words(case, ranks)])
    yield from find("elements reach the bound", "the bound", lambda: [check_words_bound(case, ranks)])
    if strategy.groups == len(ranks) and any(rank.remote_rows for rank in ranks):
        steps = _count_epochs(strategy) * strategy.steps
        yield from find(
            "rows of others are counted", "its samples", lambda: [check_remote_rows(case, ranks, steps)]
        )
    if strategy.wire:
        yield check_wire_rounding(case, ranks)
    yield check_ledger_sums(case, ranks)
    yield from find("memory equals the formula", "`memory`", lambda: [check_memory(case, ranks)])
    yield check_all_memory(case, ranks)
    yield from check_replay(case, ranks, examined)
    if case.train_twice and REPEATED not in known:
        yield from find(REPEATED, "training again", lambda: [check_again()])


def _find_or_report_error(
    case: Case, check: str, when: str, find: Callable[[], Iterable[Finding]]
) -> Iterator[Finding]:
    """Yield the findings of a check; if it raises an error, it failed."""
    try:
        yield from find()
    except Exception as error:
        yield _report_error(check, case, when, error)


def _check_training(
    case: Case, strategy: Strategy, ranks: Sequence[RankResult], run: Runner
) -> Iterator[Finding]:
    """Compare a training with the dense reference, or its gradients with differences of its losses."""
    if serial := _train_serially(case, strategy):
        is_rounded = strategy.wire or not _has_recurrence(strategy)
        yield from check_serial(case, ranks, serial, strategy.rounding if is_rounded else 0.0)
    elif not strategy.rounding:
        yield _check_gradients(case, ranks, run)


def _check_gradients(case: Case, ranks: Sequence[RankResult], run: Runner) -> Finding:
    """Return the finding at the first distance at which the check passes, or at the last."""
    for distance in DISTANCES:
        nearby = run(case.spec.ranks, compute_nearby_losses, case, distance)[0]
        finding = check_gradient_slopes(case, ranks, nearby, distance)
        if finding.holds:
            break
    return finding


def _check_draws(case: Case, strategy: Strategy, most: int) -> Iterator[Finding]:
    """Test what a case draws: the mean, and the distribution."""
    if strategy.effective_promise is Promise.ESTIMATOR:
        yield _check_means(case, strategy)
    if strategy.reference_sampler:
        yield check_samples(case, most)


def _check_means(case: Case, strategy: Strategy) -> Finding:
    """Check that the samples of an estimator are unbiased."""
    if strategy.mini_batches:
        return check_unbiased_batches(case)
    if strategy.transmit_rows(torch.zeros(1, 1), 0) is not None:
        return check_unbiased_messages(case)
    return check_unbiased_layers(case, find_multiplier(case))


def _report_error(check: str, case: Case, when: str, error: Exception) -> Finding:
    """Return the finding of a check that an error ended, on a rank or here."""
    if isinstance(
        error, RunError
    ):  # of the ranks: the message ends with the traceback of the first that failed
        message, _, trace = str(error).partition("\nTraceback (most recent call last):\n")
    else:
        message, trace = f"{type(error).__name__}: {error}", _format_trace(error)
    return report_crash(check, case, Mismatch(None, when, "", "no error", message), trace)


def _format_trace(error: Exception) -> str:
    return "".join(traceback.format_exception(error))


def _train_serially(case: Case, strategy: Strategy) -> Trained | None:
    """Run the dense training that a strategy must equal, on the same samples. None if no matrix describes a step."""
    store = case.store()
    if strategy.mini_batches:  # they number vertices in the order of the store
        return train_densely(strategy, store, EPOCHS)
    if _has_recurrence(strategy):
        recurrence = make_recurrence(strategy, store)
        return train_densely(strategy, store, _count_epochs(strategy), recurrence=recurrence)
    if multiplier := find_multiplier(case):
        places = store.orders.rows(0).argsort()
        serial = train_densely(strategy, MemoryStore(case.graph()), EPOCHS, multiplier, places=places)
        return serial.reorder(store.orders)
    return None


def _has_recurrence(strategy: Strategy) -> bool:
    """Return whether a strategy's steps are those of its recurrence, not those of serial training."""
    return strategy.recurrence is not None and strategy.effective_promise is not Promise.EXACT


def _count_epochs(strategy: Strategy) -> int:
    """Return the epochs to train."""
    if strategy.recurrence is None or not _has_recurrence(strategy):
        return EPOCHS
    return max(EPOCHS, strategy.recurrence.count_epochs(strategy))


def _check_refusal(case: Case) -> Finding:
    facts = facts_of(case.store())
    try:
        admit(load_strategy(case.spec.strategy.name), case.spec, facts)
    except UserError as refusal:
        return Finding("refused with a reason", case.name, True, str(refusal))
    except Exception as error:
        return _report_error("refused with a reason", case, "before training", error)
    ready = Mismatch(None, "before training", "", "a refusal with its reason", "a strategy that is ready")
    return report_broken("refused with a reason", case, [ready])
