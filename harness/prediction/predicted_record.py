"""Records predictions and emulations like runs, so that tables and figures show them next to measurements."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from harness.base.errors import UserError
from harness.base.formatting import GB
from harness.base.validation import clip_line
from harness.ledger import Amounts
from harness.prediction.epoch import PredictedSeconds, Prediction
from harness.results.record import read_record, write_record
from harness.runtime.provenance import collect_provenance
from harness.runtime.rank_tables import entry_to_row, key_from_row
from harness.spec.machine_card import MachineCard
from harness.spec.spec import Spec, digest
from harness.strategy import Facts


def record_prediction(
    root: Path,
    runs: Path,
    spec: Spec,
    facts: Facts,
    card: MachineCard,
    predicted: Prediction,
    emulates: str = "",
) -> Path:
    """Write the run folder of a prediction, or of an emulation of the run `emulates`, and return it.

    Equal predictions have the same run id.
    """
    source = "emulated" if emulates else "predicted"
    run_id = _compute_run_id(spec, facts, card, emulates)
    fits = card.memory_gb is None or predicted.peak_bytes <= card.memory_gb * GB
    seconds = predicted.seconds
    summary, error = {}, None
    if fits:
        summary = {
            "epochs": 1,
            "epoch_seconds_median": seconds.value,
            "vertices_per_second": facts.vertices / seconds.value,
        }
    else:
        error = {
            "rank": predicted.rank,
            "type": "OutOfMemoryError",
            "message": f"a rank would hold {predicted.peak_bytes / GB:.1f} GB of {card.memory_gb:g}",
        }
    record = {
        "run_id": run_id,
        "label": f"{spec.label.rsplit('-', 1)[0]}-{source}-{run_id[:6]}",
        "status": "ok" if fits else "oom",
        "source": source,
        "summary": summary,
        "provenance": collect_provenance(root),
        "error": error,
        "predicted": {
            "rank": predicted.rank,
            "seconds": asdict(seconds),
            "waiting": predicted.waiting,
            "elements_received": predicted.elements_received,
            "peak_bytes": predicted.peak_bytes,
            "limited_by": predicted.limited_by,
            "shares": dict(predicted.shares),
            "noise": predicted.noise,
            "sizes": "counted" if facts.exact else "expected",
            "run": emulates,
            "constants": _dump_constants(card),
        },
    }
    return write_record(runs, spec.model_dump(mode="json"), record, _build_tables(predicted))


def record_refusal(root: Path, runs: Path, spec: Spec, reason: str) -> Path:
    """Write the run folder of a run that cannot be predicted. Figures and tables show the reason."""
    document = spec.model_dump(mode="json")
    run_id = digest({"spec": document, "refused": True})
    record = {
        "run_id": run_id,
        "label": f"{spec.label.rsplit('-', 1)[0]}-predicted-{run_id[:6]}",
        "status": "refused",
        "source": "predicted",
        "summary": {},
        "provenance": collect_provenance(root),
        "error": {"rank": -1, "type": "UserError", "message": reason, "trace": ""},
    }
    return write_record(runs, document, record, {})


def load_prediction(runs: Path, spec: Spec, facts: Facts, card: MachineCard) -> Prediction | None:
    """Load the prediction of a spec from `runs`; None if none was recorded with the current constants of the card."""
    folder = runs / _compute_run_id(spec, facts, card)
    if not folder.is_dir():
        return None
    record = read_record(folder)
    entries = record.rows("ledger").to_pylist()
    try:
        stored = record.record["predicted"]
        return Prediction(
            stored["rank"],
            PredictedSeconds(**stored["seconds"]),
            {key_from_row(row): row["seconds"] for row in entries},
            stored["waiting"],
            stored["elements_received"],
            stored["peak_bytes"],
            stored["shares"],
            stored["noise"],
        )
    except (LookupError, TypeError, ValueError) as error:
        reason = clip_line(f"{type(error).__name__}: {error}", 200)
        raise UserError(
            f"{folder} holds no whole prediction ({reason}). Move {folder} away, and it is predicted again."
        ) from None


def _compute_run_id(spec: Spec, facts: Facts, card: MachineCard, emulates: str = "") -> str:
    parts = {"spec": spec.model_dump(mode="json"), "constants": _dump_constants(card), "exact": facts.exact}
    return digest(parts | ({"run": emulates} if emulates else {}))


def _dump_constants(card: MachineCard) -> dict[str, Any]:
    return {name: section.model_dump() for name in ("rates", "links") if (section := getattr(card, name))}


def _build_tables(predicted: Prediction) -> dict[str, pd.DataFrame]:
    at = {"epoch": 0, "rank_id": predicted.rank}
    rows: dict[str, list[dict[str, Any]]] = {
        "epochs": [{**at, "seconds": predicted.seconds.value, "loss": None}],
        "ledger": [
            {**at, **entry_to_row(key, Amounts(seconds=seconds))}
            for key, seconds in predicted.entries.items()
        ],
        "memory": [
            {
                "rank_id": predicted.rank,
                "host_peak_bytes": 0,
                "device_peak_bytes": predicted.peak_bytes,
                "persistent_bytes": 0,
                "tensor": "",
            }
        ],
    }
    return {name: pd.DataFrame(each) for name, each in rows.items()}
