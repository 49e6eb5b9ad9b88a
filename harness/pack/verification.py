"""Verifies a pack without repeating its runs: what must agree if nobody changed a file by hand.

Each check answers for each run that the run holds, is broken, or cannot be verified here. Nothing can verify times and
losses except the same runs on the same machine.

A pack comes from a stranger. Its files are data: no strategy is loaded from them, and a strategy of a package is
only used if the package is installed here.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from math import isclose, isnan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness import __version__
from harness.conformance.account import Sent, count_recorded_words
from harness.errors import UserError
from harness.experiment.known_graph import KnownGraph, look_up_graph
from harness.pack.reading import RUNS, Pack
from harness.progress import OnStep, ignore_step, report_steps
from harness.registry import DISTRIBUTION, PYPROJECT, hash_strategy_code, is_built_in, load_installed_strategy
from harness.results.check_proof import CheckProof
from harness.results.record import Record
from harness.results.run_summary import summarize_tables
from harness.results.schema import DIVERGED, OK, RUN_TABLES, TABLES_OF_RUN
from harness.results.statistics import number_pairs
from harness.runtime.provenance import hash_committed_strategies
from harness.spec.dataset import DatasetChoice
from harness.spec.spec import Spec, digest
from harness.store.catalog import is_in_catalog, load_card
from harness.store.datasets import find_graph_hashes
from harness.strategy import BlockCounts, WordsKey, admit
from harness.untrusted import HOME_FOLDER, redact_all
from harness.validation import clip_line

HOLDS, BROKEN, UNKNOWN = "holds", "broken", "cannot be verified"
CHECKS = {
    "record": "the record is complete; types and ranges are valid",
    "id": "the name of the run is the hash of its spec",
    "summary": "times, losses, accuracies and elements are those of its tables",
    "epochs": "it has every epoch of its spec on every rank, unless it reached its target or did not end well",
    "ledger": "the seconds of the ledger add up to those of each epoch",
    "elements": "every rank sent what the formula of its strategy says",
    "graph": "it trained on the graph that its name means",
    "proof": "the strategy was checked in full, as the same code",
    "environment": "machine, versions, commit and times are recorded",
    "privacy": "no password, no token and no home folder is in it",
}
"""What is checked of each run."""
LEDGER_TOLERANCE = 0.01
"""The part of an epoch by which its ledger may be shorter or longer: clocks are read between the two."""
LEDGER_SECONDS = 1e-4
"""The seconds by which it may differ in a short epoch."""
INTERRUPTED, TIME_SLICE = 0.1, 0.02
"""The part of the timed epochs of a rank, at least one, and the further seconds by which their ledgers may differ: the
scheduler of a busy machine stops a rank between two readings of the clock. Medians do not change by them."""
NEEDED = ("versions", "host", "cpu", "cores", "threads", "engine", "started", "finished", "store_manifest")
"""What the provenance of a measured run must have. Without a repository there is no commit."""
READ_TABLES = ("epochs", "ledger", "accuracy", "memory", "utilisation")
"""The tables that are used. The others only must be whole."""


class RunCheck(NamedTuple):
    """The answer of one check for one run."""

    check: str
    run: str
    """The id of the run."""
    verdict: str
    reason: str = ""


class VerifiedRun(NamedTuple):
    """A run and the answer of every check."""

    run_id: str
    record: Record | None
    """None if it cannot be read."""
    checks: Sequence[RunCheck]


@dataclass(frozen=True)
class Verification:
    """What was found about a pack."""

    pack: Pack
    runs: Sequence[VerifiedRun]

    @property
    def results(self) -> list[RunCheck]:
        """The answers of all checks for all runs."""
        return [check for run in self.runs for check in run.checks]

    @property
    def broken_runs(self) -> set[str]:
        """The ids of the runs for which a check is broken."""
        return {result.run for result in self.results if result.verdict == BROKEN}

    @property
    def holds(self) -> bool:
        """True if nothing is broken."""
        return not self.broken_runs

    def tabulate(self) -> list[dict[str, Any]]:
        """Return a row for each check: how many runs have each verdict, and the first reason."""
        rows = []
        for check, meaning in CHECKS.items():
            found = [result for result in self.results if result.check == check]
            verdicts = Counter(result.verdict for result in found)
            told = sorted((each for each in found if each.reason), key=lambda each: each.verdict != BROKEN)
            rows.append(
                {
                    "check": check,
                    "meaning": meaning,
                    **{verdict: verdicts[verdict] for verdict in (HOLDS, BROKEN, UNKNOWN)},
                    "reason": f"{told[0].run[:8]}: {told[0].reason}" if told else None,
                }
            )
        return rows


def verify_pack(pack: Pack, root: Path, on_step: OnStep = ignore_step) -> Verification:
    """Verify the runs of a pack. Graphs that are built under `root` are used for the formulas of strategies."""
    run_ids = report_steps(list(pack.runs), lambda run_id: f"verifying {run_id}", on_step)
    return Verification(pack, [verify_run(run_id, pack, root) for run_id in run_ids])


class PackedRun(NamedTuple):
    """A run whose files were read."""

    record: Record
    recorded: Mapping[str, Mapping[str, NDArray[Any]]]
    """The columns of the tables that are used, with the names of run folders."""

    def table(self, name: str) -> dict[str, NDArray[Any]]:
        """Return the columns of a table with the names that people see."""
        return TABLES_OF_RUN[name].rename_recorded(self.recorded[name])

    @property
    def is_measured(self) -> bool:
        return bool(self.record.record["source"] == "measured")


def verify_run(run_id: str, pack: Pack, root: Path) -> VerifiedRun:
    """Return a run of a pack with the answer of every check."""
    folder = Path(RUNS, run_id)
    try:
        run = _read_run(run_id, pack)
    except Exception as error:  # a stranger's values must not end the verification of other runs
        others = [RunCheck(check, run_id, UNKNOWN) for check in CHECKS if check != "record"]
        broken = RunCheck("record", run_id, BROKEN, _describe(error, folder))
        return VerifiedRun(run_id, None, [broken, *others])
    answers: dict[str, Callable[[], None]] = {
        "id": lambda: _check_id(run),
        "summary": lambda: _check_summary(run),
        "epochs": lambda: _check_epochs(run),
        "ledger": lambda: _check_ledger(run),
        "elements": lambda: _check_elements(run, root),
        "graph": lambda: _check_graph(run, root),
        "proof": lambda: _check_proof(run, pack.proofs),
        "environment": lambda: _check_environment(run),
        "privacy": lambda: _check_privacy(run),
    }
    results = [RunCheck("record", run_id, HOLDS)]
    for check, answer in answers.items():
        verdict, told = HOLDS, ""
        try:
            answer()
        except UnverifiableError as reason:
            verdict, told = UNKNOWN, str(reason)
        except Exception as error:
            verdict, told = BROKEN, _describe(error, folder)
        results.append(RunCheck(check, run_id, verdict, told))
    return VerifiedRun(run_id, run.record, results)


def _read_run(run_id: str, pack: Pack) -> PackedRun:
    """Read the record and every table of a run. Raises UserError if one is damaged or has another schema."""
    record = pack.read_run(run_id)
    tables = {name: record.rows(name) for name in RUN_TABLES}
    columns = {
        name: {column: tables[name][column].to_numpy() for column in RUN_TABLES[name].names}
        for name in READ_TABLES
    }
    return PackedRun(record, columns)


def _describe(error: Exception, folder: Path) -> str:
    """Describe what is wrong, with the run id for the folder of the run."""
    is_told = isinstance(error, UserError)
    text = str(error) if is_told else f"it cannot be read: {type(error).__name__}: {error}"
    return clip_line(text.replace(str(folder), folder.name), 300)


class UnverifiableError(Exception):
    """A check lacks the data that it needs, or no run of this kind has it."""


def _check_id(run: PackedRun) -> None:
    if not run.is_measured:
        raise UnverifiableError("only measured runs are named by their spec alone")
    if (expected := digest(run.record.spec)) != run.record.folder.name:
        raise UserError(f"the hash of its spec is {expected}")


def _check_summary(run: PackedRun) -> None:
    """Compare the summary with what the tables give.

    Predicted and emulated records have a part of these numbers.
    """
    told = run.record.record["summary"]
    for name, value in _summarize(run).items():
        if (run.is_measured or told.get(name) is not None) and not _are_equal(value, told.get(name)):
            raise UserError(f"{name} is {told.get(name)} in its record and {value} in its tables")


def _summarize(run: PackedRun) -> dict[str, Any]:
    if run.record.record["source"] == "external":
        raise UnverifiableError("another program's log has no tables")
    if not (run.recorded["epochs"]["epoch"] >= 0).any():
        raise UnverifiableError("it has no timed epoch")
    return summarize_tables(run.recorded, run.record.spec["training"]["target"])


def _are_equal(one: Any, other: Any) -> bool:
    """Return True for equal numbers. A loss that is not finite is null in a record."""
    if isinstance(one, float) and isinstance(other, int | float):
        return isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    return bool(one == other) or (isinstance(one, float) and isnan(one) and other is None)


def _check_epochs(run: PackedRun) -> None:
    """Check that no slow epoch was left out. A run ends early if it reaches its target or does not end well."""
    if not run.is_measured:
        raise UnverifiableError("only measured runs have all epochs of their spec")
    spec, record = run.record.spec, run.record.record
    if record["status"] not in (OK, DIVERGED):
        raise UnverifiableError(f"it ended with status {record['status']}, so it has no result")
    training, epochs = spec["training"], run.table("epochs")
    found = [*zip(epochs["epoch"].tolist(), epochs["rank_id"].tolist(), strict=True)]
    numbers = range(-training["warmup"], int(np.nanmax(epochs["epoch"])) + 1 if found else 0)
    ranks = range(spec["ranks"])
    if len(found) != len(numbers) * len(ranks) or {*found} != {*product(numbers, ranks)}:
        raise UserError("its table of epochs lacks some of an epoch or a rank")
    is_whole = len(numbers) == training["warmup"] + training["epochs"]
    has_reached = record["summary"].get("seconds_to_target") is not None
    if record["status"] == OK and not is_whole and not has_reached:
        raise UserError(f"it ended after {numbers.stop} of {training['epochs']} epochs, and says no reason")


def _check_ledger(run: PackedRun) -> None:
    if not run.is_measured:
        raise UnverifiableError("only measured runs have a clock")
    if run.record.spec["training"].get("cuda_graph"):
        raise UnverifiableError("nothing is timed inside of a CUDA graph")
    epochs, ledger = run.table("epochs"), run.table("ledger")
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


def _check_elements(run: PackedRun, root: Path) -> None:
    """Compare what every rank sent in the last epoch with the formula of the strategy, row by row."""
    if not run.is_measured or run.record.record["status"] != OK:
        raise UnverifiableError("only measured runs that ended have a whole ledger")
    spec = _find_verifiable_spec(run.record, root)
    ledger = run.table("ledger")
    last = int(ledger["epoch"].max())
    if {*ledger["rank_id"][ledger["epoch"] == last].tolist()} != {*range(spec.ranks)}:
        raise UserError(f"its ledger does not have the ranks 0 to {spec.ranks - 1}")
    formulas = _compute_words(spec.model_copy(update={"launch": 0}).model_dump_json(), last, root)
    counted_words = count_recorded_words(ledger)
    for rank, formula in enumerate(formulas):
        seen = counted_words.get(rank, {})
        for key in sorted(formula.keys() | seen.keys()):
            counted, computed = seen.get(key, Sent()).words, formula.get(key, 0)
            if counted != computed:
                raise UserError(
                    f"rank {rank} sent {counted:,.0f} elements of {key.tensor} by {key.op} over {key.axis} in layer "
                    f"{key.layer}, {key.direction}, and {computed:,.0f} by the formula"
                )


def _find_verifiable_spec(record: Record, root: Path) -> Spec:
    """Return the spec of a run, if its strategy and its graph are here and the graph is the same."""
    spec = record.parse_spec()
    try:
        load_installed_strategy(spec.strategy.name)
    except UserError:
        raise UnverifiableError(f"the strategy {spec.strategy.name} is not installed here") from None
    known = _look_up(root, spec.dataset, spec.precision)
    if known is None or known.blocks is None:
        raise UnverifiableError(f"{spec.dataset.name} is not built here: `{spec.dataset.build_command}`")
    if known.blocks.manifest_hash != record.record["provenance"]["store_manifest"]:
        raise UnverifiableError(f"the {spec.dataset.name} that is built here is another one")
    return spec


@lru_cache(maxsize=64)
def _compute_words(spec_text: str, epoch: int, root: Path) -> Sequence[Mapping[WordsKey, float]]:
    """Return the words of each rank in a timed epoch, by the formula of a spec's strategy, which may draw samples."""
    spec = Spec.model_validate_json(spec_text)
    known = _look_up(root, spec.dataset, spec.precision)
    assert known and known.blocks
    strategy = admit(load_installed_strategy(spec.strategy.name), spec, known.facts)
    counts, number = BlockCounts(known.blocks), spec.training.warmup + epoch
    return [strategy.words_of_epoch(strategy.coordinates(rank), counts, number) for rank in range(spec.ranks)]


@lru_cache(maxsize=4)
def _look_up(root: Path, choice: DatasetChoice, precision: str) -> KnownGraph | None:
    """Return a graph of this machine; None if it is not built, or unknown."""
    import torch

    try:
        return look_up_graph(root, choice, getattr(torch, precision))
    except UserError:
        return None


def _check_graph(run: PackedRun, root: Path) -> None:
    """Compare the hash of the graph with the card of its name. A card in the catalog means one graph."""
    told = _get_recorded_hash(run, "graph_hash", "graph")
    name = run.record.spec["dataset"]["name"]
    hashes = _find_graph_hashes(root, name)
    if not hashes:
        raise UnverifiableError(f"{name} is unknown here, or it is read from files and is not built here")
    if told in hashes:
        return
    if not is_in_catalog(root, name):
        raise UnverifiableError(f"the {name} that was imported here is another graph")
    if run.record.record["provenance"].get("versions", {}).get(DISTRIBUTION) != __version__:
        raise UnverifiableError(f"another version of the harness recorded it, which may make another {name}")
    raise UserError(f"its graph is not the {name} of the card here: the hash of the graph differs")


def _get_recorded_hash(run: PackedRun, key: str, what: str) -> str:
    """Return a hash that runs record."""
    if not run.is_measured:
        raise UnverifiableError("only measured runs trained")
    told = run.record.record["provenance"].get(key)
    if not told:
        raise UnverifiableError(
            f"its record has no hash of its {what}: an earlier version of the harness made it"
        )
    return str(told)


@lru_cache(maxsize=64)
def _find_graph_hashes(root: Path, name: str) -> set[str]:
    """Return the hashes that the graph of this name can have here; empty if it is unknown or not built."""
    try:
        return find_graph_hashes(root, load_card(root, name))
    except UserError:
        return set()


def _check_proof(run: PackedRun, proofs: Mapping[str, CheckProof]) -> None:
    """Compare the code of the strategy with the code that was checked: the built-in code, or the code of a proof."""
    code = _get_recorded_hash(run, "strategy_code", "strategy's code")
    name = run.record.spec["strategy"]["name"]
    if is_built_in(name):
        if code not in (_hash_installed_code(name), _hash_committed_code(run.record.record["provenance"])):
            raise UnverifiableError(
                f"unproven: its {name} is another version than the installed one, and its commit is unknown here"
            )
        return
    proof = proofs.get(name)
    if proof is None:
        raise UnverifiableError(f"unproven: the pack has no proof of {name}")
    if proof.strategy_code != code:
        raise UnverifiableError(f"unproven: the proof of {name} is of other code than the run's")
    if proof.extent != "full":
        raise UnverifiableError(f"unproven: the proof of {name} is of a smaller check, {proof.extent}")


_hash_installed_code = lru_cache(maxsize=64)(hash_strategy_code)
_hash_strategies_at = lru_cache(maxsize=64)(partial(hash_committed_strategies, PYPROJECT.parent))


def _hash_committed_code(provenance: Mapping[str, Any]) -> str:
    """Return the hash of the built-in strategies at the commit of a run, from the repository of this harness."""
    return _hash_strategies_at(provenance.get("commit") or "")


def _check_environment(run: PackedRun) -> None:
    if not run.is_measured:
        raise UnverifiableError("only measured runs have a machine")
    provenance = run.record.record["provenance"]
    if missing := [name for name in NEEDED if provenance.get(name) in (None, "", {})]:
        has_result = run.record.record["status"] in (OK, DIVERGED)
        raise (UserError if has_result else UnverifiableError)(f"its provenance lacks {', '.join(missing)}")
    if provenance["finished"] < provenance["started"]:
        raise UserError("it ended before it started")
    if not provenance.get("commit"):
        raise UnverifiableError("the commit is unknown: it ran outside of a repository")


def _check_privacy(run: PackedRun) -> None:
    for what, data in (("its record", run.record.record), ("its spec", run.record.spec)):
        if redact_all(data) != data:
            raise UserError(f"{what} has a password, a token or a key")
        if found := HOME_FOLDER.search(json.dumps(data, ensure_ascii=False)):
            raise UserError(f"{what} names {found[0]}")
