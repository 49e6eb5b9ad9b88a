"""What a record of a run contradicts in itself: a measured one never does.

Every check follows from the record and its tables alone. `harness collect` asks them for the tables, from which the
reports are made, and `harness verify` for packs.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from math import isclose, isnan, prod
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from harness.base.errors import UserError
from harness.base.validation import COMMIT, format_value
from harness.comm import traffic
from harness.ledger import MOVING, Op
from harness.results.parquet import to_array
from harness.results.run_summary import compute_bytes_received, find_texts, number_pairs, summarize_tables
from harness.results.schema import DIVERGED, OK, RUN_TABLES

READ_TABLES = ("epochs", "ledger", "accuracy", "memory", "utilisation")
"""The tables that the checks read."""
LEDGER_TOLERANCE = 0.01
"""The part of an epoch by which its ledger may be shorter or longer: clocks are read between the two."""
LEDGER_SECONDS = 1e-4
"""The seconds by which it may differ in a short epoch."""
INTERRUPTED, TIME_SLICE = 0.1, 0.1
"""The part of the timed epochs of a rank, at least one, and the further seconds by which their ledgers may differ: the
scheduler of a busy machine stops a rank between two readings of the clock. Medians do not change by them."""
CLOCKS = 0.01
"""The seconds by which parts of a run may take longer than the run."""
SHORTEST = 1e-6
"""Shorter than an epoch of anything, in seconds."""
FASTEST = 1e13
"""More bytes in a second than any rank receives."""
SMALLEST = 1 << 24
"""Fewer bytes than any process of a rank holds."""
DAY = 86400.0


class RunTables(NamedTuple):
    """A spec, its record, and its tables as arrays."""

    spec: Mapping[str, Any]
    record: Mapping[str, Any]
    tables: Mapping[str, Mapping[str, NDArray[Any]]]
    """The columns of the tables that are used."""

    @property
    def is_measured(self) -> bool:
        return bool(self.record["source"] == "measured")


class UnverifiableError(Exception):
    """A check lacks the data that it needs, or no run of this kind has it."""


def make_arrays(
    spec: Mapping[str, Any], record: Mapping[str, Any], tables: Mapping[str, pa.Table]
) -> RunTables:
    """Return a run with the columns of its tables as arrays."""
    columns = {
        name: {column: to_array(tables[name][column]) for column in RUN_TABLES[name].names}
        for name in READ_TABLES
    }
    return RunTables(spec, record, columns)


def count_columns(run: RunTables) -> dict[str, Any]:
    """Return the columns of the table `runs` that the record lacks, because they are counted in its tables."""
    has_elements = run.record["summary"].get("elements_received") is not None
    return {
        "bytes_received": compute_bytes_received(run.tables["ledger"]) if has_elements else None,
        "contradiction": find_contradiction(run),
    }


def find_contradiction(run: RunTables) -> str:
    """Return the first contradiction in a record; empty if there is none."""
    for check in CHECKS.values():
        try:
            check(run)
        except UnverifiableError:
            continue
        except UserError as reason:
            return str(reason)
        except Exception as error:  # no value of a record may end the collection of others
            return f"it cannot be checked: {type(error).__name__}: {error}"
    return ""


# Each check raises a UserError that says what is contradicted.


def check_summary(run: RunTables) -> None:
    """Compare the summary with what the tables give, and with its lower bound.

    Predicted and emulated records have a part of these numbers.
    """
    told = run.record["summary"]
    for name, value in _summarize(run).items():
        if (run.is_measured or told.get(name) is not None) and not _are_equal(value, told.get(name)):
            raise UserError(f"{name} is {told.get(name)} in its record and {value} in its tables")
    received, bound = told.get("elements_received"), told.get("elements_bound")
    if run.record["status"] == OK and bound and received is not None and received < bound:
        raise UserError(f"it received {received:,.0f} elements, fewer than its lower bound of {bound:,.0f}")


def _summarize(run: RunTables) -> dict[str, Any]:
    if run.record["source"] == "external":
        raise UnverifiableError("another program's log has no tables")
    if not (run.tables["epochs"]["epoch"] >= 0).any():
        raise UnverifiableError("it has no timed epoch")
    return summarize_tables(run.tables, run.spec["training"]["target"])


def _are_equal(one: Any, other: Any) -> bool:
    """Return True for equal numbers. A loss that is not finite is null in a record."""
    if isinstance(one, float) and isinstance(other, int | float):
        return isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    return bool(one == other) or (isinstance(one, float) and isnan(one) and other is None)


def check_epochs(run: RunTables) -> None:
    """Check that no slow epoch was left out. A run ends early if it reaches its target or does not end well."""
    _require_measured(run, "only measured runs have all epochs of their spec")
    spec, record = run.spec, run.record
    if record["status"] not in (OK, DIVERGED):
        raise UnverifiableError(f"it ended with status {record['status']}, so it has no result")
    training, epochs = spec["training"], run.tables["epochs"]
    found = [*zip(epochs["epoch"].tolist(), epochs["rank_id"].tolist(), strict=True)]
    numbers = range(-training["warmup"], int(np.nanmax(epochs["epoch"])) + 1 if found else 0)
    ranks = range(spec["ranks"])
    if len(found) != len(numbers) * len(ranks) or {*found} != {*product(numbers, ranks)}:
        raise UserError("its table of epochs lacks some of an epoch or a rank")
    is_whole = len(numbers) == training["warmup"] + training["epochs"]
    has_reached = record["summary"].get("seconds_to_target") is not None
    if record["status"] == OK and not is_whole and not has_reached:
        raise UserError(f"it ended after {numbers.stop} of {training['epochs']} epochs, and says no reason")


def check_ledger(run: RunTables) -> None:
    """Check that the seconds of the ledger add up to those of each epoch."""
    _require_measured(run, "only measured runs have a clock")
    if run.spec["training"].get("cuda_graph"):
        raise UnverifiableError("nothing is timed inside of a CUDA graph")
    epochs, ledger = run.tables["epochs"], run.tables["ledger"]
    epoch, rank_id = (np.concatenate([epochs[name], ledger[name]]) for name in ("epoch", "rank_id"))
    first, place = number_pairs(epoch, rank_id)
    epoch, rank_id = epoch[first], rank_id[first]
    in_epochs, in_ledger = np.split(place, [len(epochs["epoch"])])
    counts = [np.bincount(each, minlength=len(first)) for each in (in_epochs, in_ledger)]
    if (counts[0] != 1).any() or (counts[1] == 0).any():
        raise UserError("its ledger and its epochs are not of the same ranks and epochs")
    told, summed = np.bincount(in_epochs, epochs["seconds"]), np.bincount(in_ledger, ledger["seconds"])
    excess = np.abs(told - summed) - LEDGER_TOLERANCE * told - LEDGER_SECONDS
    is_timed = epoch >= 0
    is_wrong = is_timed & ~(excess <= 0)
    for rank in np.unique(rank_id):
        of_rank = rank_id == rank
        most = max(1, int(INTERRUPTED * (is_timed & of_rank).sum()))
        found = np.flatnonzero(is_wrong & of_rank)
        if len(found) > most or (is_wrong & of_rank & ~(excess <= TIME_SLICE)).any():
            worst = found[np.argmax(excess[found])]
            raise UserError(
                f"epoch {epoch[worst]} on rank {rank} took {told[worst]:.6g} s, and {summed[worst]:.6g} s by its ledger"
            )


def check_times(run: RunTables) -> None:
    """Check that no time is negative, in the future, or longer than the time in which it passed."""
    _require_measured(run, "only measured runs have a clock")
    epochs, ledger, accuracy = (run.tables[name] for name in ("epochs", "ledger", "accuracy"))
    if len(wrong := np.flatnonzero(~(epochs["seconds"] >= SHORTEST))):
        raise UserError(f"epoch {epochs['epoch'][wrong[0]]} took {epochs['seconds'][wrong[0]]:.3g} s")
    for name in ("seconds", "in_flight_seconds"):
        if len(wrong := np.flatnonzero(~(ledger[name] >= -LEDGER_SECONDS))):
            raise UserError(f"a row of its ledger has {ledger[name][wrong[0]]:.3g} {name}")
    _check_trained_seconds(epochs, accuracy)
    provenance = run.record["provenance"]
    begun, ended = (provenance.get(name) for name in ("started", "finished"))
    if begun is None or ended is None:
        return
    if begun > time.time() + DAY:
        raise UserError("it started in the future")
    if ended < begun:
        raise UserError("it ended before it started")
    sums = _sum_by_rank(epochs, epochs["seconds"])
    # Other ranks may begin their first epoch before rank 0, and wait for it.
    start = run.record["summary"].get("setup_seconds") or 0.0
    longest = max(start + sums.get(0, 0.0), *sums.values(), 0.0)
    if longest > (1 + LEDGER_TOLERANCE) * (ended - begun) + CLOCKS:
        raise UserError(
            f"its start and its epochs took {longest:.6g} s, and the whole run {ended - begun:.6g} s"
        )


def _check_trained_seconds(epochs: Mapping[str, NDArray[Any]], accuracy: Mapping[str, NDArray[Any]]) -> None:
    """Compare the training time before each evaluation with the epochs of rank 0, which evaluates."""
    of_rank = epochs["rank_id"] == 0
    order = np.argsort(epochs["epoch"][of_rank], kind="stable")
    numbers = epochs["epoch"][of_rank][order]
    total = np.concatenate([[0.0], np.cumsum(epochs["seconds"][of_rank][order])])
    expected = total[np.searchsorted(numbers, accuracy["epoch"], side="right")]
    told = accuracy["train_seconds"]
    if len(wrong := np.flatnonzero(~np.isclose(told, expected, rtol=1e-6, atol=1e-9))):
        at = wrong[0]
        raise UserError(
            f"training took {told[at]:.6g} s until the evaluation after epoch {accuracy['epoch'][at]}, and its epochs "
            f"{expected[at]:.6g} s"
        )


def check_amounts(run: RunTables) -> None:
    """Check that accuracies, losses, memory, and the elements and bytes of the ledger are within their bounds."""
    _require_measured(run, "only measured runs measure these amounts")
    share = run.tables["accuracy"]["accuracy"].astype(float)
    if len(wrong := np.flatnonzero((share < 0) | (share > 1))):
        raise UserError(f"an accuracy is {share[wrong[0]]:.6g}")
    _check_losses(run)
    _check_memory(run)
    for told in _find_impossible_messages(run.spec.get("grid") or {}, run.tables["ledger"]):
        raise UserError(told)
    _check_speed(run)
    commit = run.record["provenance"].get("commit")
    if commit and not (isinstance(commit, str) and COMMIT.fullmatch(commit)):
        raise UserError(f"{format_value(commit)} is not the full name of a commit")


def _check_losses(run: RunTables) -> None:
    epochs = run.tables["epochs"]
    numbers, place = np.unique(epochs["epoch"], return_inverse=True)
    low, high = np.full(len(numbers), np.inf), np.full(len(numbers), -np.inf)
    np.fmin.at(low, place, epochs["loss"])
    np.fmax.at(high, place, epochs["loss"])
    is_known = np.isfinite(low) & np.isfinite(high)
    wrong = np.flatnonzero(is_known & ~np.isclose(low, high, rtol=1e-6))
    if len(wrong):
        raise UserError(f"ranks have different losses in epoch {numbers[wrong[0]]}")


def _check_memory(run: RunTables) -> None:
    """Check the peaks of each rank. A process may hold more than it has touched, a device may not."""
    memory = run.tables["memory"]
    is_peak = memory["tensor"] == ""
    for rank, host, device in zip(
        *(memory[name][is_peak] for name in ("rank_id", "host_peak_bytes", "device_peak_bytes")), strict=True
    ):
        held = memory["persistent_bytes"][memory["rank_id"] == rank].sum()
        if host < SMALLEST:
            raise UserError(f"rank {rank} used {host:,} bytes of host memory, less than a process has")
        if 0 < device < held:
            raise UserError(f"rank {rank} holds {held:,} bytes on a device of which it used {device:,}")


RECEIVED: Mapping[Op, Callable[[int], float]] = {
    Op.ALL_REDUCE: lambda size: traffic.all_reduce(1, size).received,
    Op.REDUCE_SCATTER: lambda size: traffic.reduce_scatter(1, size).received,
    Op.SEND: lambda _: traffic.send(1).received,
    Op.RECV: lambda _: traffic.recv(1).received,
}
"""The received elements of each row, as a share of its payload, by the number of ranks."""
RECEIVED_BY_ALL = (Op.ALL_GATHER, Op.BROADCAST)
"""Operations of which all ranks together receive (size - 1) / size of their payloads, however these are split."""


def _find_impossible_messages(grid: Mapping[str, int], ledger: Mapping[str, NDArray[Any]]) -> Iterator[str]:
    """Yield what no collective does: receive more or less than it moves, or elements of less than a bit."""
    rows = np.flatnonzero(find_texts(ledger["op"], MOVING))
    op, axis, epoch, payload, received, nbytes = (
        ledger[name][rows]
        for name in ("op", "axis", "epoch", "elements_payload", "elements_received", "bytes")
    )
    if not ((payload >= 0).all() and (received >= 0).all() and (ledger["calls"] >= 0).all()):
        yield "a row of its ledger has fewer than 0 elements or calls"
    _, kinds = number_pairs(op, axis)
    numbers, place = np.unique(epoch, return_inverse=True)
    for kind in range(kinds.max(initial=-1) + 1):
        of_kind = np.flatnonzero(kinds == kind)
        what, names = Op(op[of_kind[0]]), str(axis[of_kind[0]]).split("+")
        if not all(name in grid for name in names):
            continue
        size = prod(grid[name] for name in names)
        where = f"{what} over {axis[of_kind[0]]}"
        moved, got = payload[of_kind], received[of_kind]
        if (got > 2 * moved if what is Op.ALL_REDUCE else got > moved).any():
            yield f"a row of {where} receives more elements than it moves"
        if (8 * nbytes[of_kind] < moved).any():
            yield f"a row of {where} moves elements in less than a bit each"
        if what in RECEIVED:
            share, told = RECEIVED[what](size), got
        elif what in RECEIVED_BY_ALL:
            sums = (np.bincount(place[of_kind], each, len(numbers)) for each in (moved, got))
            moved, told = sums
            share = (size - 1) / size
        else:  # of an all-to-all, a rank keeps any part
            continue
        if len(wrong := np.flatnonzero(~np.isclose(told, share * moved, rtol=1e-9, atol=1e-6))):
            yield (
                f"{where} receives {told[wrong[0]]:,.0f} elements of a payload of {moved[wrong[0]]:,.0f}, and "
                f"{share * moved[wrong[0]]:,.0f} by its rule"
            )


def _check_speed(run: RunTables) -> None:
    """Check that no rank receives bytes faster than any link brings them."""
    epochs, ledger = run.tables["epochs"], run.tables["ledger"]
    share = ledger["elements_received"] / np.maximum(ledger["elements_payload"], 1)
    seconds = _sum_by_rank(epochs, epochs["seconds"])
    for rank, received in _sum_by_rank(ledger, ledger["bytes"] * np.minimum(share, 1)).items():
        if received > FASTEST * seconds.get(rank, 0.0):
            raise UserError(f"rank {rank} received {received:,.0f} bytes in {seconds.get(rank, 0.0):.3g} s")


def _sum_by_rank(table: Mapping[str, NDArray[Any]], amounts: NDArray[Any]) -> dict[int, float]:
    """Return the sum of a table's amounts for each rank. A stranger's table may have any number as a rank."""
    ranks, place = np.unique(table["rank_id"], return_inverse=True)
    return dict(zip(ranks.tolist(), np.bincount(place, amounts, len(ranks)).tolist(), strict=True))


def _require_measured(run: RunTables, reason: str) -> None:
    if not run.is_measured:
        raise UnverifiableError(reason)


CHECKS: Mapping[str, Callable[[RunTables], None]] = {
    "summary": check_summary,
    "epochs": check_epochs,
    "ledger": check_ledger,
    "times": check_times,
    "amounts": check_amounts,
}
"""The checks by name."""
