"""A machine's card with the links that were measured, as a new file: what people wrote is not written over."""

import platform
import time
from pathlib import Path
from typing import Any

import yaml

from harness.doctor.measuring import Measured
from harness.documents import read_yaml
from harness.errors import UserError
from harness.files import write_text
from harness.spec.machine import load_machine_card


def write_card(root: Path, machine: str, name: str, measured: Measured) -> Path:
    """machines/NAME.yaml: the card of the machine with other links."""
    path = root / "machines" / f"{name}.yaml"
    if path.exists():
        raise UserError(f"{path} exists. Write the card under another name, or move it away.")
    card = load_machine_card(root, machine)
    document = read_yaml(root / "machines" / f"{machine}.yaml", f"machines/{machine}.yaml")
    per_node = card.slurm.ranks_per_node if card.slurm else max(row.size for row in measured.rows)
    document["links"] = links(measured, per_node)
    origin = f"# {machine}.yaml, links by all-reduces on {platform.node()}, {time.strftime('%Y-%m-%d')}."
    write_text(path, f"{origin}\n{yaml.safe_dump(document, sort_keys=False)}")
    return path


def links(measured: Measured, per_node: int) -> dict[str, Any]:
    """What a card says of links. Rows of larger axes come last: of those that are not above an axis, the last holds."""
    rows = sorted(measured.rows, key=lambda row: (row.before, row.size))
    inside = [row.gbs for row in rows if row.before * row.size <= per_node]
    leaving = [row.gbs * min(per_node, row.before) for row in rows if row.before * row.size > per_node]
    return {
        "devices_per_node": per_node,
        "intra_gbs": max(inside or leaving),
        "node_gbs": max(leaving or inside),
        "latency_us": round(measured.latency_us, 1),
        "measured": [{**row.model_dump(), "gbs": float(f"{row.gbs:.4g}")} for row in rows],
    }
