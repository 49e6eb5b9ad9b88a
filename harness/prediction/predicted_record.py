"""Records predictions and emulations like runs, so that tables and figures show them next to measurements."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from harness.base.formatting import GB
from harness.ledger import Amounts
from harness.prediction.epoch import Prediction
from harness.results.record import write_record
from harness.runtime.rank_tables import entry_to_row
from harness.runtime.recording import graph_sizes
from harness.spec.machine_card import MachineCard
from harness.spec.spec import Spec, digest
from harness.strategy import Facts


def record_prediction(
    runs: Path,
    spec: Spec,
    facts: Facts,
    card: MachineCard,
    predicted: Prediction,
    provenance: Mapping[str, Any],
    emulates: str = "",
) -> Path:
    """Write the run folder of a prediction, or of an emulation of the run `emulates`, and return it.

    Equal predictions have the same run id.
    """
    source = "emulated" if emulates else "predicted"
    run_id = _compute_run_id(spec, facts, card, emulates)
    fits = card.memory_gb is None or predicted.peak_bytes <= card.memory_gb * GB
    seconds = predicted.seconds
    summary, error = dict[str, Any](), None
    if fits:
        summary = {
            "graph": graph_sizes(facts, spec.protocol),
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
        "provenance": provenance,
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
            "constants": dump_constants(card),
        },
    }
    return write_record(runs, spec.model_dump(mode="json"), record, _build_tables(predicted))


def record_refusal(runs: Path, spec: Spec, reason: str, provenance: Mapping[str, Any]) -> Path:
    """Write the run folder of a run that cannot be predicted. Figures and tables show the reason."""
    document = spec.model_dump(mode="json")
    run_id = digest({"spec": document, "refused": True})
    record = {
        "run_id": run_id,
        "label": f"{spec.label.rsplit('-', 1)[0]}-predicted-{run_id[:6]}",
        "status": "refused",
        "source": "predicted",
        "summary": {},
        "provenance": provenance,
        "error": {"rank": -1, "type": "UserError", "message": reason, "trace": ""},
    }
    return write_record(runs, document, record, {})


def _compute_run_id(spec: Spec, facts: Facts, card: MachineCard, emulates: str = "") -> str:
    parts = {"spec": spec.model_dump(mode="json"), "constants": dump_constants(card), "exact": facts.exact}
    return digest(parts | ({"run": emulates} if emulates else {}))


def dump_constants(card: MachineCard) -> dict[str, Any]:
    """Return the constants that a card has and that predictions depend on, as JSON data."""
    sections = {name: getattr(card, name) for name in ("rates", "links")}
    return {name: section.model_dump(exclude_none=True) for name, section in sections.items() if section}


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
