"""The checks of a strategy, each made on every rank of a case."""

import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harness.comm.axis import ROUNDED
from harness.conformance.account import Sent
from harness.conformance.case import Case, RankResult, draw_direction
from harness.conformance.mismatch import (
    ALLOWED,
    FORMULA,
    REPLAY,
    RUN,
    SERIAL,
    Mismatch,
    compare_losses,
    compare_tensors,
    find_inherited_frame,
    find_own_frame,
    locate_strategy,
    summarize,
)
from harness.conformance.reference import Trained, find_entries, read_adjacency
from harness.graph.averaged import select_adjacency
from harness.graph.blocks import Blocks
from harness.graph.model import TRAIN
from harness.kernels.csr import Csr, from_scipy, to_scipy
from harness.ledger import TensorName
from harness.ledger.tape import OutlineEvent, outline_events
from harness.prediction.replay import replay
from harness.registry import load_strategy
from harness.spec.spec import Protocol
from harness.strategy import Piece, Strategy, WordsKey
from harness.strategy.counts import find_targets
from harness.strategy.memory import HeldTensor


class ScipyCounts:
    """Implements `harness.strategy.Counts` with scipy on the whole matrix: an independent check of formulas."""

    def __init__(self, blocks: Blocks) -> None:
        everyone = range(blocks.n)
        self._labels = blocks.labels(everyone).numpy()
        self._trains = blocks.split(everyone).numpy() == TRAIN
        self._edge_parts = blocks.edge_parts(everyone)
        self._A = [to_scipy(blocks.adjacency(everyone, everyone, order)).tocoo() for order in (0, 1)]

    def nonzeros(self, rows: range, cols: range, *, transposed: bool = False, order: int = 0) -> int:
        return len(self._columns(rows, cols, transposed, order))

    def nonempty_columns(self, rows: range, cols: range, *, transposed: bool = False) -> int:
        return len(np.unique(self._columns(rows, cols, transposed, 0)))

    def adjacency(self) -> Csr:
        return from_scipy(self._A[0])

    def edge_parts(self) -> Tensor | None:
        return self._edge_parts

    def targets(self, protocol: Protocol) -> Tensor:
        """Return the vertices that the loss counts.

        Labels are one class, or a flag for each class; -1 means unlabelled.
        """
        known = self._labels.reshape(len(self._labels), -1).max(axis=1) >= 0
        return torch.from_numpy(np.flatnonzero(known & (self._trains if protocol == "corrected" else True)))

    def _columns(self, rows: range, cols: range, transposed: bool, order: int) -> Any:
        """Return the column of every nonzero in the rectangle."""
        A = self._A[order]
        i, j = (A.col, A.row) if transposed else (A.row, A.col)
        return j[(i >= rows.start) & (i < rows.stop) & (j >= cols.start) & (j < cols.stop)]


TOLERANCE = 1e-12
"""The limit of ||x - y|| / ||y|| in double precision. Correct strategies stay below 1e-14."""

DIFFERENCE = 1e-3
"""The limit of the error of a derivative, relative to the gradient's norm. Correct strategies stay below 1e-7, unless
the moved weight turns a ReLU on or off."""

ROUNDINGS = 8
"""The limit for strategies that round messages, as a multiple of one rounding error."""


@dataclass(frozen=True)
class Finding:
    """The outcome of a check on a case."""

    check: str
    case: str
    holds: bool
    detail: str
    """The margin if the check passes; otherwise the differences with their places and the expected values."""
    look: str = ""
    """Where to look for the cause of a failed check."""
    setting: str = ""
    """The complete case of a failed check, with everything needed to repeat it."""
    wrong: Sequence[Mismatch] = ()
    """The differences of a failed check, one by one."""
    worst: float | None = None
    """The largest difference that was measured, of a check that allows a small one."""
    allowed: float | None = None
    """The largest difference that the check allows."""
    unit: str = ""
    """The unit of both differences; empty if they are relative."""
    trace: str = ""
    """The traceback of the error that ended the check, if there was one."""


LOOK = {
    "losses equal serial": "the class of `operators`: in epoch 0, the forward pass and the loss, which is a mean over "
    "the training vertices of all ranks; in a later epoch, the gradients of earlier epochs",
    "losses near serial": "the class of `operators`: the forward pass, and which tensors are sent in a narrower dtype",
    "gradients equal serial": "the class of `operators`: the backward pass of this tensor, the axes over which it "
    "sums, and A^T instead of A",
    "gradients equal differences": "the class of `operators`: the backward pass of this tensor, the axes over which it "
    "sums, and A^T instead of A",
    "parameters equal serial": "the class of `operators`: what differs between steps, in `for_step` or "
    "`reduce_gradients`, and sums of gradients",
    "outputs equal serial": "the class of `operators`: its operators for the whole graph, which evaluate",
    "accuracies equal serial": "the class of `operators`: its `evaluate`, and the labels of every split",
    "elements equal the formula": "`words`, and the call that the ledger records under this key",
    "rows of others are counted": "what is added to `harness.strategy.context.RemoteRows`, the rows of a cache's "
    "hit rate",
    "elements reach the bound": "`words_lower_bound`, which is too high, or `is_owner_computes`",
    "messages are rounded": "tensors in `harness.comm.axis.ROUNDED` that are sent packed, or in another dtype",
    "memory equals the formula": "`memory`, and the tensors that the operators hold in the context's memory",
    "all memory is counted": "tensors that the operators keep outside of the context's memory: hold them there and "
    "count them in `memory`, or free them",
    "equal to its replay": "code that depends on values or on the device (docs/tutorials/add-a-strategy.md, end of "
    "steps)",
    "memory equals the replay": "sizes that depend on values or on the device (docs/tutorials/add-a-strategy.md, end "
    "of steps)",
    "entries add up to the epoch": "calls and kernels outside the ledger's phases and scopes",
    "same seed, same bits": "random numbers that depend on more than seed, group and step; sums in order of arrival",
    "trains": "the class of `operators`: if replicas differ, a missing sum over ranks, in `reduce_gradients` or in the "
    "backward pass of this weight; otherwise, the traceback (-v)",
    "unbiased": "`mini_batch` or `effective_adjacency`: sampled entries are scaled by one over their probability",
    "samples as described": "`mini_batch` or `effective_adjacency`: what is drawn, how often, with which values and "
    "random numbers; or `reference_sampler`, which describes it",
    "messages are unbiased": "`transmit_rows`: the rounding of the rows that are sent",
    "refused with a reason": "`refuse` and `grids`",
}
"""Which parts of a strategy to look at if a check fails (docs/tutorials/add-a-strategy.md)."""


def report_finding(
    check: str,
    case: Case,
    wrong: Sequence[Mismatch],
    margin: str,
    worst: float | None = None,
    allowed: float | None = None,
    unit: str = "",
) -> Finding:
    """Return the finding of a check, which passes without mismatches. `margin` describes by how much it holds."""
    found = report_broken(check, case, wrong) if wrong else Finding(check, case.name, True, margin)
    return replace(found, worst=worst, allowed=allowed, unit=unit)


def report_broken(check: str, case: Case, wrong: Sequence[Mismatch]) -> Finding:
    """Return the finding of a failed check, with the complete case and where to look for the cause."""
    look = f"{locate_strategy(load_strategy(case.spec.strategy.name), LOOK[check])}: {LOOK[check]}"
    detail = f"{case.description}: {summarize(wrong)}"
    return Finding(check, case.name, False, detail, look, case.description, wrong)


def report_crash(check: str, case: Case, wrong: Mismatch, trace: str) -> Finding:
    """Return the finding of a check that an error ended. The place to look is the author's line that led to it."""
    strategy, found = (
        load_strategy(case.spec.strategy.name),
        replace(report_broken(check, case, [wrong]), trace=trace),
    )
    if frame := find_own_frame(strategy, trace):
        return replace(found, look=frame)
    if frame := find_inherited_frame(strategy, trace):
        return replace(
            found, look=f"{locate_strategy(strategy, LOOK[check])}: it inherits the code of {frame}"
        )
    return found


class Compared(NamedTuple):
    """A tensor of one rank and the same piece of the serial tensor."""

    check: str
    when: str
    what: str
    mine: Tensor
    serial: Tensor
    start: tuple[int, ...]
    """The tensor's first row and column in the whole matrix."""


def check_serial(
    case: Case, ranks: Sequence[RankResult], serial: Trained, rounding: float = 0.0
) -> list[Finding]:
    """Check that losses, first gradients, last parameters and outputs equal the pieces of serial training.

    If the ranks round numbers that the serial training does not round, only losses are compared, and are nearly equal.
    """
    strategy = case.strategy()
    if rounding:
        return [_check_near_serial(case, ranks, serial, rounding)]
    wrong, worst = _find_wrong_losses(ranks, serial, TOLERANCE)
    errors = {"losses equal serial": worst}
    mismatches: dict[str, list[Mismatch]] = {"losses equal serial": wrong}
    for number, rank in enumerate(ranks):
        for check, when, what, mine, theirs, start in _list_compared(strategy, number, rank, serial):
            error = _relative_error(mine, theirs)
            errors[check] = max(errors.get(check, 0.0), error)
            if error > TOLERANCE:
                where = number, when, what
                mismatches.setdefault(check, []).append(
                    compare_tensors(where, theirs, mine, TOLERANCE, start)
                )
    answers = ", ".join(f"{name} {hits.correct}/{hits.total}" for name, hits in serial.hits.items())
    return [
        *(
            report_finding(check, case, mismatches.get(check, []), f"{error:.0e}", error, TOLERANCE)
            for check, error in errors.items()
        ),
        report_finding("accuracies equal serial", case, _find_wrong_answers(ranks, serial), answers),
    ]


def _list_compared(strategy: Strategy, number: int, rank: RankResult, serial: Trained) -> Iterator[Compared]:
    """Yield the tensors in the order in which an error spreads: from the last layer to the first, then by step."""
    last = len(serial.losses) - 1
    pieces = strategy.parameter_pieces(number)
    names = [*map(str, strategy.weights), "the input features"][: len(pieces)]
    for name, piece, mine, whole in reversed(
        list(zip(names, pieces, rank.gradients, serial.gradients, strict=True))
    ):
        what = f"the gradient of {name}"
        yield Compared(
            "gradients equal serial", "epoch 0", what, mine, _select_piece(whole, piece), _piece_start(piece)
        )
    for name, piece, mine, whole in zip(names, pieces, rank.parameters, serial.parameters, strict=True):
        when, serial_part = f"after epoch {last}", _select_piece(whole, piece)
        yield Compared("parameters equal serial", when, name, mine, serial_part, _piece_start(piece))
    piece = strategy.output_piece(rank.at)
    yield Compared(
        "outputs equal serial",
        f"after epoch {last}",
        "the output",
        rank.output,
        _select_piece(serial.output, piece),
        _piece_start(piece),
    )


def _find_wrong_answers(ranks: Sequence[RankResult], serial: Trained) -> list[Mismatch]:
    when = f"after epoch {len(serial.losses) - 1}"
    return [
        Mismatch(
            number,
            when,
            f"right answers of {name}",
            f"{expected.correct} of {expected.total}",
            f"{got.correct} of {got.total}",
            (SERIAL, RUN),
        )
        for number, rank in enumerate(ranks)
        for name, expected in serial.hits.items()
        if (got := rank.hits[name]) != expected
    ]


def _check_near_serial(case: Case, ranks: Sequence[RankResult], serial: Trained, rounding: float) -> Finding:
    """Check that losses are nearly the same with rounded messages. The drift of weights depends on the training."""
    allowed = ROUNDINGS * rounding
    wrong, worst = _find_wrong_losses(ranks, serial, allowed)
    margin = f"{worst:.0e}, rounded by {rounding:.0e}"
    return report_finding("losses near serial", case, wrong, margin, worst, allowed)


def check_gradient_slopes(
    case: Case, ranks: Sequence[RankResult], nearby: Sequence[float], distance: float
) -> Finding:
    """Check that the first epoch's gradients are derivatives of its loss, by central differences of `nearby` losses.

    This also holds for strategies that use stale rows, because the first epoch has no earlier one.
    """
    strategy, wrong, worst = case.strategy(), list[Mismatch](), 0.0
    pieces = [strategy.weight_pieces(number) for number in range(len(ranks))]
    for number, weight in enumerate(strategy.weights):
        gradient = torch.zeros(weight.shape, dtype=torch.float64)
        for rank, rank_pieces in zip(ranks, pieces, strict=True):
            _select_piece(gradient, rank_pieces[number])[:] = rank.gradients[number]
        ahead, behind = nearby[2 * number : 2 * number + 2]
        slope = (ahead - behind) / (2 * distance)
        got = float((gradient * draw_direction(number, Piece(*map(range, weight.shape)))).sum())
        error = abs(got - slope) / max(float(gradient.norm()), abs(slope), 1e-300)
        worst = max(worst, error)
        if not error <= DIFFERENCE:
            what = f"the slope of the loss along random signs of {weight}"
            values = f"{slope:.6g}", f"{got:.6g} (tolerance {DIFFERENCE:.0e} of its norm)"
            wrong.append(Mismatch(None, "epoch 0", what, *values, ("by differences", "by the gradient")))
    return report_finding("gradients equal differences", case, wrong, f"{worst:.0e}", worst, DIFFERENCE)


def _find_wrong_losses(
    ranks: Sequence[RankResult], serial: Trained, tolerance: float
) -> tuple[list[Mismatch], float]:
    """Return the mismatches beyond the tolerance, and the largest error."""
    expected, every_rank = _to_tensor(serial.losses), [_to_tensor(rank.losses) for rank in ranks]
    errors = [_relative_error(got, expected) for got in every_rank]
    wrong = [
        compare_losses(number, expected, got, tolerance)
        for number, (got, error) in enumerate(zip(every_rank, errors, strict=True))
        if error > tolerance
    ]
    return wrong, max(errors)


def check_words(case: Case, ranks: Sequence[RankResult]) -> Finding:
    """Check that the ledger's payload elements equal the formula row by row on every rank.

    They also equal a count by brute force, if the strategy has one.
    """
    strategy, store, wrong = case.strategy(), case.store(), list[Mismatch]()
    counts, entries = ScipyCounts(store), find_entries(store)
    for number, rank in enumerate(ranks):
        wrong += _compare_words(strategy.words(rank.at, counts), number, rank, FORMULA)
        if (counted := strategy.reference_words(rank.at, entries)) is not None:
            wrong += _compare_words(counted, number, rank, "brute force")
    total = sum(sent.words for rank in ranks for sent in rank.sent.values())
    return report_finding("elements equal the formula", case, wrong, f"{total:,.0f}")


def check_words_bound(case: Case, ranks: Sequence[RankResult]) -> Finding:
    """Check that no rank receives fewer words than the lower bound for its kind of strategy."""
    strategy, counts = case.strategy(), ScipyCounts(case.store())
    least = [strategy.words_lower_bound(rank.at, counts) for rank in ranks]
    words = [sum(sent.received for sent in rank.sent.values()) for rank in ranks]
    wrong = [
        Mismatch(number, "epoch 0", "all elements received", f"{bound:,.0f} or more", total, ("bound", RUN))
        for number, (bound, total) in enumerate(zip(least, words, strict=True))
        if total < bound
    ]
    most = max(range(len(ranks)), key=words.__getitem__)
    return report_finding(
        "elements reach the bound", case, wrong, f"{words[most]:,.0f} of {least[most]:,.0f}"
    )


def check_remote_rows(case: Case, ranks: Sequence[RankResult], steps: int) -> Finding:
    """Compare the remote rows that each rank counted with the vertices of its mini-batches."""
    strategy, store = case.strategy(), case.store()
    A = read_adjacency(select_adjacency(store, case.spec.model.kind))
    targets = find_targets(store, case.spec.protocol)
    wrong = list[Mismatch]()
    for number, rank in enumerate(ranks):
        own = strategy.input_piece(rank.at).rows
        needed = [strategy.mini_batch(step, number, A, targets).vertices[0] for step in range(steps)]
        expected = sum(int(((each < own.start) | (each >= own.stop)).sum()) for each in needed)
        if rank.remote_rows != expected:
            wrong.append(Mismatch(number, "all epochs", "rows of others", expected, rank.remote_rows))
    total = sum(rank.remote_rows for rank in ranks)
    return report_finding("rows of others are counted", case, wrong, f"{total:,}")


def check_replay(case: Case, ranks: Sequence[RankResult], replayed_ranks: Iterable[int]) -> list[Finding]:
    """Check that a replay on meta tensors has the same calls, products, waits and bytes in the same order."""
    strategy, store = case.strategy(), case.store()
    wrong, heavier, lines, count = list[Mismatch](), list[Mismatch](), 0, 0
    for number in replayed_ranks:
        rank = ranks[number]
        lines, count = lines + len(rank.lines), count + 1
        try:
            replayed = replay(strategy, number, store, chosen=rank.chosen)
        except Exception as error:
            raised = f"{type(error).__name__}: {error}"
            differs = Mismatch(number, "its replay", "", "the events of the run", raised)
            trace = "".join(traceback.format_exception(error))
            found = report_crash("equal to its replay", case, differs, trace)
            return [replace(found, look=f"{found.look}; {LOOK[found.check]}")]
        wrong += _find_first_difference(number, rank.lines, outline_events(replayed.events))
        heavier += _compare_sizes(number, rank, replayed.persistent_bytes, REPLAY)
    return [
        report_finding("equal to its replay", case, wrong, f"{lines:,} events"),
        report_finding("memory equals the replay", case, heavier, f"{count} ranks"),
    ]


def _find_first_difference(
    number: int, run: Sequence[OutlineEvent], replayed: Sequence[OutlineEvent]
) -> list[Mismatch]:
    for place, (mine, theirs) in enumerate(zip_longest(run, replayed)):
        if mine != theirs:
            return [
                Mismatch(
                    number,
                    "epoch 0",
                    f"event {place}",
                    _describe_event(theirs),
                    _describe_event(mine),
                    (REPLAY, RUN),
                )
            ]
    return []


def _describe_event(line: OutlineEvent | None) -> str:
    """Describe the key of an event and its nonzero numbers."""
    if line is None:
        return "no event"
    key, *_ = line
    at = [str(part) for part in key if part is not None]
    counted = [(name, value) for name, value in list(line._asdict().items())[1:] if value]
    numbers = [
        f"{name} = {value:,}" if name != "products" else f"{name} = {value}" for name, value in counted
    ]
    return f"[{' '.join(at)}: {', '.join(numbers)}]"


def check_memory(case: Case, ranks: Sequence[RankResult]) -> Finding:
    """Check that every rank holds the bytes of the strategy's formula, with nonzeros counted by scipy."""
    strategy, counts = case.strategy(), ScipyCounts(case.store())
    wrong = [
        line
        for number, rank in enumerate(ranks)
        for line in _compare_sizes(number, rank, strategy.memory(rank.at, counts), FORMULA)
    ]
    total = sum(sum(rank.persistent_bytes.values()) for rank in ranks)
    return report_finding("memory equals the formula", case, wrong, f"{total:,} bytes")


def check_all_memory(case: Case, ranks: Sequence[RankResult]) -> Finding:
    """Check that no tensor lives after set-up that the context's memory does not hold, by Python's collector."""
    wrong = [
        Mismatch(
            number,
            "after set-up",
            f"bytes outside of the context's memory, kept by {each.owner}",
            0,
            each.bytes,
            (ALLOWED, RUN),
            f"{list(each.shape)} {each.dtype}",
        )
        for number, rank in enumerate(ranks)
        for each in rank.uncounted
    ]
    return report_finding("all memory is counted", case, wrong, "0 bytes outside of the context's memory")


def _compare_sizes(
    number: int, rank: RankResult, expected: Mapping[TensorName, int], source: str
) -> list[Mismatch]:
    """Return the names whose bytes differ, with the tensors held. A name without an entry has no bytes."""
    held = rank.persistent_bytes
    return [
        Mismatch(
            number,
            "all the time",
            f"bytes held of {name}",
            expected.get(name, 0),
            held.get(name, 0),
            (source, RUN),
            _format_held(tensor for tensor in rank.held if tensor.name == name),
        )
        for name in sorted(held.keys() | expected.keys())
        if held.get(name, 0) != expected.get(name, 0)
    ]


def _format_held(tensors: Iterable[HeldTensor]) -> str:
    """Describe tensors by shape, type and bytes. Equal ones are counted."""
    return ", ".join(
        f"{f'{times} x ' if times > 1 else ''}{list(each.shape)} {each.dtype} of {each.bytes:,}"
        for each, times in Counter(tensors).items()
    )


def check_wire_rounding(case: Case, ranks: Sequence[RankResult]) -> Finding:
    """Check that all features, activations and their gradients are sent in the dtype of the wire."""
    wire = case.strategy().wire
    assert wire is not None
    moved = [
        (number, key, sent, wire.itemsize * sent.words)
        for number, rank in enumerate(ranks)
        for key, sent in rank.sent.items()
        if key.tensor in ROUNDED
    ]
    wrong = [
        Mismatch(number, "epoch 0", f"bytes {_describe_key(key)}", narrow, sent.bytes, ("rounded", RUN))
        for number, key, sent, narrow in moved
        if sent.bytes != narrow
    ]
    total = sum(sent.bytes for _, _, sent, _ in moved)
    return report_finding(
        "messages are rounded", case, wrong, f"{total:,.0f} bytes in {case.spec.strategy.params['wire']}"
    )


def check_ledger_sums(case: Case, ranks: Sequence[RankResult]) -> Finding:
    """Check that the entries of the ledger add up to the epoch: exactly one entry is current at any time."""
    wrong = [
        Mismatch(number, "epoch 0", "ticks in no entry of the ledger", 0, rank.unaccounted)
        for number, rank in enumerate(ranks)
        if rank.unaccounted
    ]
    return report_finding("entries add up to the epoch", case, wrong, "0 ticks missing")


def check_repeatable(case: Case, once: Sequence[RankResult], again: Sequence[RankResult]) -> Finding:
    """Check that a second training with the same seed, whose calls are composed of rounds, gives the same bits.

    On a GPU, torch is asked for deterministic operations; the detail names the operations that have none.
    """
    wrong = [
        line
        for number, (mine, theirs) in enumerate(zip(once, again, strict=True))
        for line in _compare_bits(case.strategy(), number, mine, theirs)
    ]
    found = report_finding("same seed, same bits", case, wrong, f"{len(once)} ranks, twice, once in rounds")
    unordered = set().union(*(rank.unordered for rank in (*once, *again)))
    if not unordered:
        return found
    return replace(found, detail=f"{found.detail}; not deterministic here: {', '.join(sorted(unordered))}")


TWICE = "first time", "second time"


def _compare_bits(strategy: Strategy, number: int, once: RankResult, again: RankResult) -> Iterator[Mismatch]:
    """Yield the first epoch whose loss differs, or if all losses are equal, every parameter that differs."""
    for epoch, (first, second) in enumerate(zip(once.losses, again.losses, strict=True)):
        if first != second:
            yield Mismatch(number, f"epoch {epoch}", "the loss", repr(first), repr(second), TWICE)
            return
    names = [*map(str, strategy.weights), "the input features"]
    when = f"after epoch {len(once.losses) - 1}"
    for name, mine, theirs in zip(names, once.parameters, again.parameters, strict=False):
        if not torch.equal(mine, theirs):
            yield compare_tensors((number, when, name), mine, theirs, 0.0, sides=TWICE)


def _compare_words(
    expected: Mapping[WordsKey, float], number: int, rank: RankResult, side: str
) -> list[Mismatch]:
    return [
        Mismatch(
            number,
            "epoch 0",
            f"elements {_describe_key(key)}",
            expected.get(key, 0),
            sent.words,
            (side, RUN),
        )
        for key in sorted(expected.keys() | rank.sent.keys())
        for sent in [rank.sent.get(key, Sent())]
        if sent.words != expected.get(key, 0)
    ]


def _describe_key(key: WordsKey) -> str:
    layer = f"layer {key.layer}" if key.layer >= 0 else "outside the layers"
    return f"of {key.tensor} by {key.op} over {key.axis}, {key.direction}, {layer}"


def _select_piece(whole: Tensor, piece: Piece) -> Tensor:
    return whole[piece.rows.start : piece.rows.stop, piece.cols.start : piece.cols.stop]


def _piece_start(piece: Piece) -> tuple[int, int]:
    return piece.rows.start, piece.cols.start


def _to_tensor(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _relative_error(mine: Tensor, theirs: Tensor) -> float:
    """Return ||x - y|| / ||y||; infinity if the shapes differ or a number is not finite."""
    if mine.shape != theirs.shape or not bool(mine.isfinite().all()):
        return float("inf")
    difference, size = float((mine - theirs).norm()), float(theirs.norm())
    return difference / size if size else difference
