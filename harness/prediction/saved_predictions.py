"""Predictions of the papers' runs, saved in files, so that figures and verdicts need not make them again.

A file belongs to an experiment, and is compressed by gzip. Its first line has the commit that made the predictions, a
digest of the constants of each machine card, and the best grids; every other line has the prediction of a run, or the
reason why the run cannot be predicted. The predictions for a card count only as long as its constants do not change.
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from harness.base.errors import UserError
from harness.base.validation import clip_line
from harness.ledger import AxisName, Key
from harness.prediction.epoch import PredictedSeconds, Prediction
from harness.prediction.predicted_record import dump_constants
from harness.runtime.rank_tables import key_from_row
from harness.spec.machine_card import MachineCard, list_machines, load_machine_card
from harness.spec.spec import Spec, digest

SUFFIX = ".jsonl.gz"
Grids = dict[str, dict[AxisName, int]]
"""The best grid of each request, by its digest."""


class PredictedRun(NamedTuple):
    """What is predicted: an epoch or one evaluation of a run, by a machine card, maybe from twins of its graph."""

    run: str
    """The digest of the spec of the run's first launch."""
    card: str
    twins: str = ""
    evaluation: bool = False


class SavedPrediction(NamedTuple):
    """The prediction of a run, or the reason why it cannot be predicted."""

    label: str
    """The label of the run."""
    predicted: Prediction | None = None
    refusal: str = ""
    commit: str = ""
    """The commit that made a prediction in a file; empty for a new one."""


class SavedPredictions:
    """The predictions of experiments, by run, and the best grids of their requests."""

    def __init__(self) -> None:
        self.best_grids: dict[str, Grids] = {}
        """The best grids of the requests of each experiment."""
        self._by_run: dict[PredictedRun, SavedPrediction] = {}

    def find(
        self, spec: Spec, card: str, twins: str = "", *, evaluation: bool = False
    ) -> SavedPrediction | None:
        """Return what is saved about a run, for any launch of it."""
        return self._by_run.get(PredictedRun(digest_run(spec), card, twins, evaluation))

    def find_best(self, spec: Spec) -> SavedPrediction | None:
        """Return what is saved about an epoch of a run on its own machine, if possible from twins of its graph."""
        run = digest_run(spec)
        found = [
            (key.twins, saved)
            for key, saved in self._by_run.items()
            if (key.run, key.card, key.evaluation) == (run, spec.machine.name, False)
        ]
        return max(found, key=lambda each: (each[1].predicted is not None, each[0]))[1] if found else None

    def add(
        self,
        spec: Spec,
        card: str,
        predicted: Prediction | str,
        twins: str = "",
        *,
        evaluation: bool = False,
    ) -> None:
        """Add the prediction of a run, or the reason why it cannot be predicted."""
        self._by_run[PredictedRun(digest_run(spec), card, twins, evaluation)] = (
            SavedPrediction(spec.label, refusal=predicted)
            if isinstance(predicted, str)
            else SavedPrediction(spec.label, predicted)
        )

    def write(self, folder: Path, experiment: str, specs: Iterable[Spec], root: Path, commit: str) -> Path:
        """Write what is known about the runs of an experiment to its file, and return the file.

        New predictions were made by `commit`.
        """
        runs = {digest_run(spec) for spec in specs}
        rows = {key: saved for key, saved in self._by_run.items() if key.run in runs}
        cards = sorted({key.card for key in rows})
        head = {
            "commit": commit,
            "cards": {name: _digest_constants(load_machine_card(root, name)) for name in cards},
            "best_grids": self.best_grids.get(experiment, {}),
        }
        lines = [head, *(_to_line(key, saved) for key, saved in rows.items())]
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{experiment}{SUFFIX}"
        text = "".join(json.dumps(line) + "\n" for line in lines)
        path.write_bytes(gzip.compress(text.encode(), mtime=0))
        return path

    def read(self, path: Path, root: Path) -> None:
        """Add the predictions in a file, without those for cards whose constants have changed."""
        try:
            head, *lines = map(json.loads, gzip.decompress(path.read_bytes()).splitlines())
            known = set(list_machines(root))
            current = {
                name
                for name, constants in head["cards"].items()
                if name in known and _digest_constants(load_machine_card(root, name)) == constants
            }
            for line in lines:
                if line["card"] in current:
                    key, saved = _from_line(line)
                    self._by_run[key] = saved._replace(commit=saved.commit or head["commit"])
            if current == set(head["cards"]):
                self.best_grids[path.name.removesuffix(SUFFIX)] = head["best_grids"]
        except (LookupError, TypeError, ValueError, OSError, EOFError) as error:
            reason = clip_line(f"{type(error).__name__}: {error}", 200)
            raise UserError(f"{path} is not a file of predictions ({reason}).") from None


def read_predictions(folder: Path | None, root: Path) -> SavedPredictions:
    """Read the predictions in the files of a folder."""
    saved = SavedPredictions()
    for path in sorted(folder.glob(f"*{SUFFIX}")) if folder else ():
        saved.read(path, root)
    return saved


def digest_run(spec: Spec) -> str:
    """Return the digest of the spec of a run's first launch. Launches of a run have the same prediction."""
    return digest(spec.model_copy(update={"launch": 0}).model_dump(mode="json"))


def _digest_constants(card: MachineCard) -> str:
    return digest(dump_constants(card))


def _to_line(key: PredictedRun, saved: SavedPrediction) -> dict[str, Any]:
    """Return a prediction as JSON data, without the parts that it does not have."""
    parts = {**key._asdict(), "commit": saved.commit}
    line = {"label": saved.label, **{name: value for name, value in parts.items() if value}}
    if saved.predicted is None:
        return {**line, "refusal": saved.refusal}
    predicted = saved.predicted
    return {
        **line,
        **{name: value for name, value in vars(predicted).items() if name not in ("seconds", "entries")},
        "shares": dict(predicted.shares),
        "seconds": asdict(predicted.seconds),
        "entries": [[*entry, seconds] for entry, seconds in predicted.entries.items()],
    }


def _from_line(line: Mapping[str, Any]) -> tuple[PredictedRun, SavedPrediction]:
    commit = line.get("commit", "")
    key = PredictedRun(line["run"], line["card"], line.get("twins", ""), line.get("evaluation", False))
    if "refusal" in line:
        return key, SavedPrediction(line["label"], refusal=line["refusal"], commit=commit)
    prediction = Prediction(
        line["rank"],
        PredictedSeconds(**line["seconds"]),
        dict(_read_entries(line["entries"])),
        line["waiting"],
        line["elements_received"],
        line["peak_bytes"],
        line["shares"],
        line["noise"],
    )
    return key, SavedPrediction(line["label"], prediction, commit=commit)


def _read_entries(rows: Iterable[list[Any]]) -> Iterator[tuple[Key, float]]:
    for *parts, seconds in rows:
        yield key_from_row(dict(zip(Key._fields, parts, strict=True))), seconds
