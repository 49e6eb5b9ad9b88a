"""A machine's card with the links that were measured, as a new file: what people wrote is not written over."""

import json
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from harness.documents import read_yaml
from harness.errors import RunError, UserError
from harness.files import owner_tag, sweep, write_text
from harness.launch.fork_server import ForkServer
from harness.launch.hang_detector import HangDetector
from harness.launch.processes import Ranks
from harness.launch.ways import way
from harness.spec.machine import MACHINES, MeasuredLink, load_machine, load_machine_card
from harness.spec.root import results_folder

# Measures the links between ranks: of this machine, or of the nodes of the job that this process is in.

LONGEST = 120.0
"""Seconds after which something is wrong: the ranks themselves stop after thirty."""


class Measured(NamedTuple):
    """What all-reduces showed."""

    rows: list[MeasuredLink]
    latency_us: float


def measure(root: Path, machine: str, ranks: int, tell: Callable[[str], None]) -> Measured:
    """Starts the ranks as those of a run are started."""
    if ranks < 2:
        raise UserError(f"--ranks {ranks}: links are between two ranks or more.")
    card, place = load_machine(root, machine), results_folder(root)
    place.mkdir(parents=True, exist_ok=True)
    sweep(place)
    tell(f"measuring all-reduces between {ranks} ranks over {card.engine}, about 30 s")
    with tempfile.TemporaryDirectory(prefix=f"launch-{owner_tag()}.", dir=place) as name:
        out, log = Path(name) / "measured.json", Path(name) / "log"
        program = ["harness.doctor.links", "--engine", card.engine]
        program += ["--meeting", str(Path(name) / "meeting"), "--out", str(out)]
        chosen = way(card, ranks, root, program)
        with ForkServer() as server, Ranks(chosen.start(server, log, tell), chosen.ending) as started:
            started.watch(HangDetector(None), LONGEST, lambda: None)
        if not out.exists():
            raise RunError(
                f"the ranks could not measure their links: {log.read_text(errors='replace')[-1500:]}"
            )
        told = json.loads(out.read_text())
    return Measured([MeasuredLink(**row) for row in told["rows"]], told["latency_us"])


def write_card(root: Path, machine: str, name: str, measured: Measured) -> Path:
    """config/machines/NAME.yaml: the card of the machine with other links."""
    path = root / MACHINES / f"{name}.yaml"
    if path.exists():
        raise UserError(f"{path} exists. Write the card under another name, or move it away.")
    card = load_machine_card(root, machine)
    source = MACHINES / f"{machine}.yaml"
    document = read_yaml(root / source, str(source))
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
