"""Measures the links between ranks: of this machine, or of the nodes of the job that this process is in."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from harness.errors import RunError, UserError
from harness.files import owner_tag, sweep
from harness.launch.fork_server import ForkServer
from harness.launch.hang_detector import HangDetector
from harness.launch.processes import Ranks
from harness.launch.ways import way
from harness.spec.machine import MeasuredLink, load_machine
from harness.spec.root import results_folder

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
