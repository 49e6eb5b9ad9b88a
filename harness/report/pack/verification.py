"""Verifies a pack without repeating its runs: what must agree if nobody changed a file by hand.

Each check answers for each run that the run holds, is broken, or cannot be verified here. Nothing can verify times and
losses except the same runs on the same machine.

A pack comes from a stranger. Its files are data: no strategy is loaded from them, and a strategy of a package is
only used if the package is installed here.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness import __version__
from harness.base.errors import UserError
from harness.base.progress import OnStep, ignore_step, report_steps
from harness.base.untrusted import HOME_FOLDER, find_confusable, redact_all
from harness.base.validation import clip_line, validate
from harness.conformance.account import Sent, count_recorded_words
from harness.experiment.known_graph import KnownGraph, look_up_graph
from harness.graph.cards.catalog import is_in_catalog, load_card
from harness.graph.model import SPLITS, has_label
from harness.graph.store.location import find_graph_hashes
from harness.ledger import MOVING, TensorName
from harness.registry import DISTRIBUTION, PYPROJECT, hash_strategy_code, is_built_in, load_installed_strategy
from harness.report.pack.reading import RUNS, Pack
from harness.results import consistency
from harness.results.check_certificate import CheckCertificate
from harness.results.consistency import RunTables, UnverifiableError
from harness.results.record import Record
from harness.results.run_summary import find_texts, number_pairs
from harness.results.schema import DIVERGED, OK
from harness.runtime.provenance import has_commit, hash_committed_strategies
from harness.spec.dataset import DatasetChoice
from harness.spec.spec import Spec, digest
from harness.strategy import BlockCounts, Coordinates, Counts, Strategy, WordsKey, admit

HOLDS, BROKEN, UNKNOWN = "holds", "broken", "cannot be verified"
CHECKS = {
    "record": "the record is complete; types and ranges are valid",
    "id": "the name of the run is the hash of its spec",
    "names": "no name has letters of several alphabets, which look alike",
    "summary": "times, losses, accuracies and elements are those of its tables",
    "epochs": "it has every epoch of its spec on every rank, unless it reached its target or did not end well",
    "ledger": "the seconds of the ledger add up to those of each epoch",
    "times": "no time is negative, in the future, or longer than the time in which it passed",
    "amounts": "accuracies, memory, received elements and bytes are possible",
    "elements": "every rank sent what the formula of its strategy says",
    "accuracy": "accuracies are shares of the vertices of the graph",
    "memory": "every rank holds at least what the formula of its strategy says",
    "graph": "it trained on the graph that its name means",
    "certificate": "the strategy was checked in full, as the same code",
    "environment": "machine, versions, commit and times are recorded",
    "privacy": "no password, no token and no home folder is in it",
}
"""What is checked of each run."""
NEEDED = ("versions", "host", "cpu", "cores", "threads", "engine", "started", "finished", "store_manifest")
"""What the provenance of a measured run must have. Without a repository there is no commit."""
SAMPLED_EPOCHS = 16
"""How many epochs are compared with the formula, chosen at random, if epochs differ."""
FEW_TIMES, TIME_DIGITS = 3, 9
"""Two runs do not have equal ratios of at least three times in nine digits by chance."""
VALUES = {TensorName(name) for name in ("X", "H", "T", "W", "Z", "G", "S", "dT", "dH", "dX", "dW")}
"""The tensors whose elements are numbers of the precision of the run, or of the type in which it sends them."""


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
    times: str = ""
    """A digest of its times that no other run has; empty if it has no times."""


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


def verify_run(run_id: str, pack: Pack, root: Path) -> VerifiedRun:
    """Return a run of a pack with the answer of every check."""
    folder = Path(RUNS, run_id)
    try:
        record = pack.read_run(run_id)
        run = record.read_tables()
    except Exception as error:  # a stranger's values must not end the verification of other runs
        others = [RunCheck(check, run_id, UNKNOWN) for check in CHECKS if check != "record"]
        broken = RunCheck("record", run_id, BROKEN, _describe(error, folder))
        return VerifiedRun(run_id, None, [broken, *others])
    answers: dict[str, Callable[[], None]] = {
        "id": lambda: _check_id(run),
        "names": lambda: _check_names(run),
        **{name: partial(check, run) for name, check in consistency.CHECKS.items()},
        "elements": lambda: _check_elements(run, root),
        "accuracy": lambda: _check_accuracy(run, root),
        "memory": lambda: _check_memory(run, root),
        "graph": lambda: _check_graph(run, root),
        "certificate": lambda: _check_certificate(run, pack.certificates),
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
    return VerifiedRun(run_id, record, results, digest_times(run))


def digest_times(run: RunTables) -> str:
    """Return a digest of the times of a run, which stays the same if they are multiplied by a factor or reordered.

    Of fewer than `FEW_TIMES`, it is a digest of the times and the losses themselves.
    """
    epochs = run.tables["epochs"]
    seconds = np.sort(epochs["seconds"])
    if not run.is_measured or not len(seconds):
        return ""
    if len(seconds) < FEW_TIMES:
        shared = np.concatenate([seconds, epochs["loss"]])
    else:
        shared = np.round(seconds / seconds[-1], TIME_DIGITS)
    return sha256(shared.tobytes()).hexdigest()[:16]


def _describe(error: Exception, folder: Path) -> str:
    """Describe what is wrong, with the run id for the folder of the run."""
    is_told = isinstance(error, UserError)
    text = str(error) if is_told else f"it cannot be read: {type(error).__name__}: {error}"
    return clip_line(text.replace(str(folder), folder.name), 300)


def _parse_spec(run: RunTables) -> Spec:
    return validate(Spec, run.spec, "its spec")


def _check_id(run: RunTables) -> None:
    if not run.is_measured:
        raise UnverifiableError("only measured runs are named by their spec alone")
    if (expected := digest(run.spec)) != run.record["run_id"]:
        raise UserError(f"the hash of its spec is {expected}")


def _check_names(run: RunTables) -> None:
    """Check the names by which runs are grouped and shown."""
    for section in ("strategy", "dataset", "machine"):
        name = str((run.spec.get(section) or {}).get("name", ""))
        if reason := find_confusable(name):
            raise UserError(f"the name of its {section} {reason}")


@dataclass(frozen=True, eq=False)
class Admitted:
    """A strategy that is installed here, on a graph that is built here, and what its formulas give for each rank."""

    strategy: Strategy
    counts: Counts
    _words: dict[int, Sequence[Mapping[WordsKey, float]]] = field(default_factory=dict)

    def compute_words(self, epoch: int) -> Sequence[Mapping[WordsKey, float]]:
        """Return the words of a timed epoch. The strategy may draw samples for them."""
        if epoch not in self._words:
            number = self.strategy.spec.training.warmup + epoch
            self._words[epoch] = [
                self.strategy.words_of_epoch(at, self.counts, number) for at in self._places
            ]
        return self._words[epoch]

    @cached_property
    def memory(self) -> Sequence[Mapping[TensorName, int]]:
        """The bytes of each tensor."""
        return [self.strategy.memory(at, self.counts) for at in self._places]

    @property
    def _places(self) -> list[Coordinates]:
        return [self.strategy.coordinates(rank) for rank in range(self.strategy.spec.ranks)]


def _check_elements(run: RunTables, root: Path) -> None:
    """Compare what every rank sent with the formula of the strategy, row by row.

    If all epochs have the same formula, every timed epoch is compared with it. Otherwise some are, chosen at random.
    """
    if not run.is_measured or run.record["status"] != OK:
        raise UnverifiableError("only measured runs that ended have a whole ledger")
    admitted, excuse = _admit_run(run, root)
    ledger = run.tables["ledger"]
    try:
        for epoch in _choose_epochs(admitted.strategy, ledger):
            _compare_epoch(admitted, ledger, epoch)
    except UserError as error:
        raise _excuse(error, excuse) from None


def _choose_epochs(strategy: Strategy, ledger: Mapping[str, NDArray[Any]]) -> list[int]:
    """Return the timed epochs to compare. Raises UserError if epochs differ that have the same formula."""
    numbers: list[int] = np.unique(ledger["epoch"][ledger["epoch"] >= 0]).tolist()
    if type(strategy).words_of_epoch is Strategy.words_of_epoch:
        _check_steady(ledger, len(numbers))
        return numbers[-1:]
    return sorted(random.sample(numbers, min(len(numbers), SAMPLED_EPOCHS)))


def _check_steady(ledger: Mapping[str, NDArray[Any]], epochs: int) -> None:
    """Check that every rank sends the same in every timed epoch."""
    rows = np.flatnonzero((ledger["epoch"] >= 0) & (ledger["elements_payload"] > 0))
    rows = rows[find_texts(ledger["op"][rows], MOVING)]
    key = np.zeros(len(rows), dtype=np.int64)
    for name in ("rank_id", "direction", "layer", "op", "axis", "tensor"):
        _, key = number_pairs(key, ledger[name][rows])
    first, place = number_pairs(key, ledger["epoch"][rows])
    sums, of_key = np.bincount(place, ledger["elements_payload"][rows]), key[first]
    low, high = (np.full(key.max(initial=-1) + 1, bound) for bound in (np.inf, -np.inf))
    np.minimum.at(low, of_key, sums)
    np.maximum.at(high, of_key, sums)
    wrong = np.flatnonzero((low != high) | (np.bincount(of_key, minlength=len(low)) != epochs))
    if len(wrong):
        row = rows[np.flatnonzero(key == wrong[0])[0]]
        rank, op, axis, tensor = (ledger[name][row] for name in ("rank_id", "op", "axis", "tensor"))
        raise UserError(
            f"rank {rank} does not send the same elements of {tensor} by {op} over {axis} in all epochs, and by the "
            "formula it does"
        )


def _compare_epoch(admitted: Admitted, ledger: Mapping[str, NDArray[Any]], epoch: int) -> None:
    strategy = admitted.strategy
    if {*ledger["rank_id"][ledger["epoch"] == epoch].tolist()} != {*range(strategy.spec.ranks)}:
        raise UserError(f"its ledger does not have the ranks 0 to {strategy.spec.ranks - 1}")
    counted_words = count_recorded_words(ledger, epoch)
    for rank, formula in enumerate(admitted.compute_words(epoch)):
        seen = counted_words.get(rank, {})
        for key in sorted(formula.keys() | seen.keys()):
            sent, computed = seen.get(key, Sent()), formula.get(key, 0)
            what = f"of {key.tensor} by {key.op} over {key.axis} in layer {key.layer}, {key.direction}"
            if sent.words != computed:
                raise UserError(
                    f"rank {rank} sent {sent.words:,.0f} elements {what}, and {computed:,.0f} by the formula"
                )
            if key.tensor in VALUES and sent.bytes < strategy.word_bytes * sent.words:
                raise UserError(
                    f"rank {rank} sent {sent.words:,.0f} elements {what} in {sent.bytes:,.0f} bytes, and an element "
                    f"has {strategy.word_bytes:g}"
                )


def _check_accuracy(run: RunTables, root: Path) -> None:
    """Check that every accuracy is a number of vertices of its split, divided by all of them."""
    if not run.is_measured:
        raise UnverifiableError("only measured runs have evaluated the graph that is here")
    if metric := run.record["summary"].get("accuracy_by"):
        raise UnverifiableError(f"it has scores by {metric}, which are not shares of vertices")
    blocks = _find_graph(run, root).blocks
    assert blocks
    if blocks.task != "single-label":
        raise UnverifiableError("vertices have several labels, and an F1 score is not a share of vertices")
    everyone, accuracy = range(blocks.n), run.tables["accuracy"]
    split = blocks.split(everyone)[has_label(blocks.labels(everyone))]
    for name, number in SPLITS.items():
        size = int((split == number).sum())
        correct = accuracy["accuracy"][accuracy["split"] == name].astype(float) * size
        is_wrong = np.abs(correct - np.round(correct)) > 1e-6 * size  # not where it is null
        if is_wrong.any():
            share = correct[is_wrong][0] / size
            raise UserError(f"an accuracy of {name} is {share:.9g}, not a share of its {size:,} vertices")


def _check_memory(run: RunTables, root: Path) -> None:
    """Compare what every rank holds between epochs with the formula of the strategy."""
    if not run.is_measured or run.record["status"] != OK:
        raise UnverifiableError("only measured runs that ended have measured their memory")
    admitted, excuse = _admit_run(run, root)
    memory = run.tables["memory"]
    for rank, formula in enumerate(admitted.memory):
        of_rank = memory["rank_id"] == rank
        names, sizes = (memory[name][of_rank].tolist() for name in ("tensor", "persistent_bytes"))
        held = dict(zip(names, sizes, strict=True))
        for tensor, computed in formula.items():
            if (found := held.get(tensor, 0)) < computed:
                error = UserError(
                    f"rank {rank} holds {found:,} bytes of {tensor}, and {computed:,} by the formula"
                )
                raise _excuse(error, excuse)


def _admit_run(run: RunTables, root: Path) -> tuple[Admitted, str]:
    """Return the strategy and the counts of a run if both are here, and why they may differ from the run's, if so.

    The same graph in the same order is split in the same way, unless a program partitions it. Another version of the
    harness may order it otherwise.
    """
    spec, provenance = _parse_spec(run), run.record["provenance"]
    name = spec.strategy.name
    try:
        load_installed_strategy(name)
    except UserError:
        raise UnverifiableError(f"the strategy {name} is not installed here") from None
    has_manifest = _has_manifest(_find_graph(run, root), provenance)
    has_version = provenance.get("versions", {}).get(DISTRIBUTION) == __version__
    excuse = ""
    if provenance.get("strategy_code") != _hash_installed_code(name):
        excuse = f"the {name} that is installed here is another version"
    elif not has_manifest and (spec.dataset.partitioned or not has_version):
        excuse = f"the {spec.dataset.name} that is built here may be split differently"
    return _admit(spec.model_copy(update={"launch": 0}).model_dump_json(), root), excuse


def _excuse(error: UserError, excuse: str) -> Exception:
    """Return the error, or that the check cannot be made if there is an excuse for the difference."""
    return UnverifiableError(f"{error}; {excuse}") if excuse else error


def _find_graph(run: RunTables, root: Path) -> KnownGraph:
    """Return the graph of a run with its blocks, if it is built here."""
    spec, provenance = _parse_spec(run), run.record["provenance"]
    known = _look_up(root, spec.dataset, spec.precision)
    if known is None or known.blocks is None:
        raise UnverifiableError(f"{spec.dataset.name} is not built here: `{spec.dataset.build_command}`")
    if known.blocks.graph_hash != provenance.get("graph_hash") and not _has_manifest(known, provenance):
        raise UnverifiableError(f"the {spec.dataset.name} that is built here is another one")
    return known


def _has_manifest(known: KnownGraph, provenance: Mapping[str, Any]) -> bool:
    """Return True if the graph here has the files of the graph of a run."""
    return known.blocks is not None and known.blocks.manifest_hash == provenance.get("store_manifest")


@lru_cache(maxsize=64)
def _admit(spec_text: str, root: Path) -> Admitted:
    spec = Spec.model_validate_json(spec_text)
    known = _look_up(root, spec.dataset, spec.precision)
    assert known and known.blocks
    strategy = admit(load_installed_strategy(spec.strategy.name), spec, known.facts)
    return Admitted(strategy, BlockCounts(known.blocks))


@lru_cache(maxsize=4)
def _look_up(root: Path, choice: DatasetChoice, precision: str) -> KnownGraph | None:
    """Return a graph of this machine; None if it is not built, or unknown."""
    import torch

    try:
        return look_up_graph(root, choice, getattr(torch, precision))
    except UserError:
        return None


def _check_graph(run: RunTables, root: Path) -> None:
    """Compare the hash of the graph with the card of its name. A card in the catalog means one graph."""
    told = _get_recorded_hash(run, "graph_hash", "graph")
    name = run.spec["dataset"]["name"]
    hashes = _find_graph_hashes(root, name)
    if not hashes:
        raise UnverifiableError(f"{name} is unknown here, or it is read from files and is not built here")
    if told in hashes:
        _check_sizes(run, root)
        return
    if not is_in_catalog(root, name):
        raise UnverifiableError(f"the {name} that was imported here is another graph")
    if run.record["provenance"].get("versions", {}).get(DISTRIBUTION) != __version__:
        raise UnverifiableError(f"another version of the harness recorded it, which may make another {name}")
    raise UserError(f"its graph is not the {name} of the card here: the hash of the graph differs")


def _check_sizes(run: RunTables, root: Path) -> None:
    """Compare the sizes of the graph with those of the graph here; with its card if it is not built."""
    spec, told = _parse_spec(run), run.record["summary"].get("graph") or {}
    known = _look_up(root, spec.dataset, spec.precision)
    if known is None or not told:  # a run that did not end well has no sizes
        return
    names = ("vertices", "nonzeros", "features", "classes") if known.facts.exact else ("features", "classes")
    for name in names:
        if told.get(name) != (size := getattr(known.facts, name)):
            raise UserError(f"its graph has {told.get(name)} {name} in its record, and {size} here")


def _get_recorded_hash(run: RunTables, key: str, what: str) -> str:
    """Return a hash that runs record."""
    if not run.is_measured:
        raise UnverifiableError("only measured runs trained")
    told = run.record["provenance"].get(key)
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


def _check_certificate(run: RunTables, certificates: Mapping[str, CheckCertificate]) -> None:
    """Compare the code of the strategy with the code that was checked: built in, or named by a certificate."""
    code = _get_recorded_hash(run, "strategy_code", "strategy's code")
    name = run.spec["strategy"]["name"]
    if is_built_in(name):
        if code not in (_hash_installed_code(name), _hash_committed_code(run.record["provenance"])):
            raise UnverifiableError(
                f"uncertified: its {name} is another version than the installed one, and its commit is unknown here"
            )
        return
    certificate = certificates.get(name)
    if certificate is None:
        raise UnverifiableError(f"uncertified: the pack has no certificate of {name}")
    if certificate.strategy_code != code:
        raise UnverifiableError(f"uncertified: the certificate of {name} is of other code than the run's")
    if certificate.extent != "full":
        raise UnverifiableError(
            f"uncertified: the certificate of {name} is of a smaller check, {certificate.extent}"
        )


_hash_installed_code = lru_cache(maxsize=64)(hash_strategy_code)
_hash_strategies_at = lru_cache(maxsize=64)(partial(hash_committed_strategies, PYPROJECT.parent))


def _hash_committed_code(provenance: Mapping[str, Any]) -> str:
    """Return the hash of the built-in strategies at the commit of a run, from the repository of this harness."""
    return _hash_strategies_at(provenance.get("commit") or "")


def _check_environment(run: RunTables) -> None:
    if not run.is_measured:
        raise UnverifiableError("only measured runs have a machine")
    provenance = run.record["provenance"]
    if missing := [name for name in NEEDED if provenance.get(name) in (None, "", {})]:
        has_result = run.record["status"] in (OK, DIVERGED)
        raise (UserError if has_result else UnverifiableError)(f"its provenance lacks {', '.join(missing)}")
    if not provenance.get("commit"):
        raise UnverifiableError("the commit is unknown: it ran outside of a repository")
    if not _has_commit(provenance["commit"]):
        raise UnverifiableError("its commit is not in the repository of this harness")


_has_commit = lru_cache(maxsize=64)(partial(has_commit, PYPROJECT.parent))


def _check_privacy(run: RunTables) -> None:
    for what, data in (("its record", run.record), ("its spec", run.spec)):
        if redact_all(data) != data:
            raise UserError(f"{what} has a password, a token or a key")
        if found := HOME_FOLDER.search(json.dumps(data, ensure_ascii=False)):
            raise UserError(f"{what} names {found[0]}")
