"""Measures the links between ranks, and writes them to a new machine card.

`measure_links` starts ranks, each of which runs this module. The ranks time all-reduces on every axis that they can
form, described by the size of its groups and the distance between members. All groups communicate at the same time, as
in training. A GB is 2^30 bytes received by a member of a ring, as in machine cards.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml

from harness.base.device import synchronize
from harness.base.documents import read_yaml
from harness.base.errors import RunError, UserError
from harness.base.files import SCRATCH, owner_tag, read_tail, remove_leftovers, write_text
from harness.base.formatting import GB
from harness.base.progress import Log
from harness.base.validation import RANKS, check_name, format_value
from harness.comm import engine, interfaces, launchers, traffic
from harness.comm.axis import Axis
from harness.comm.engine import Engine
from harness.comm.grid import Grid
from harness.ledger import AxisName, Ledger, TensorName
from harness.prediction.calibration.term_fit import fit_terms
from harness.prediction.pricing import AxisPlacement, count_tree_levels
from harness.runtime.launch.fork_server import ForkServer
from harness.runtime.launch.hang_detector import HangDetector
from harness.runtime.launch.processes import Ranks
from harness.runtime.launch.rank_starter import make_rank_starter
from harness.spec.machine_card import MACHINES, MachineCard, MeasuredLink, load_machine, load_machine_card
from harness.spec.root import find_results_folder

LONGEST = 120.0
"""The time limit of the measurement in seconds. The ranks stop by themselves after about forty."""


class LinkMeasurement(NamedTuple):
    """The result of a measurement."""

    rows: list[MeasuredLink]
    latency_us: float
    network: str | None = None
    """The network between nodes that NCCL chose; None without NCCL."""
    small_us: tuple[float, ...] = ()
    """The time of the smallest all-reduce on the axis of each row."""


def measure_links(root: Path, machine: str, ranks: int, report: Log) -> LinkMeasurement:
    """Start ranks as a run does, on this machine or on the nodes of this Slurm job, and measure their links."""
    check_link_ranks(ranks)
    card, folder = load_machine(root, machine), find_results_folder(root)
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    report(f"measuring all-reduces between {ranks} ranks over {card.engine}, about 40 s")
    with tempfile.TemporaryDirectory(prefix=f"{SCRATCH}{owner_tag()}.", dir=folder) as name:
        out, log = Path(name) / "measured.json", Path(name) / "log"
        program = ["harness.prediction.calibration.links", "--engine", card.engine]
        program += ["--meeting", str(Path(name) / "meeting"), "--out", str(out)]
        starter = make_rank_starter(card, ranks, root, program)
        with (
            ForkServer() as server,
            closing(starter),
            Ranks(starter.start(server, log, report), starter.ending_signal) as started,
        ):
            started.watch(HangDetector(None), LONGEST, starter.serve_rendezvous)
        if not out.exists():
            raise RunError(f"the ranks could not measure their links: {read_tail(log, 1500)}")
        result = json.loads(out.read_text(encoding="utf-8"))
    check_network(load_machine_card(root, machine), ranks, result["network"])
    return LinkMeasurement(
        [MeasuredLink(**row) for row in result["rows"]],
        result["latency_us"],
        result["network"],
        tuple(result["small_us"]),
    )


def check_link_ranks(ranks: int) -> None:
    """Raise UserError if links cannot be measured between so few ranks."""
    if ranks < 2:
        raise UserError(f"--ranks {ranks} is not accepted: measuring links takes at least 2 ranks.")


def check_network(card: MachineCard, ranks: int, network: str | None) -> None:
    """Raise RunError if NCCL chose another network than the fabric of the card, such as TCP. One node needs none."""
    known = card.slurm.networks if card.slurm and ranks > card.slurm.ranks_per_node else ()
    if known and network and network not in known:
        raise RunError(
            f"NCCL chose the network {network}, but the card {card.name} names {' or '.join(known)}: these are not the "
            "links of the fabric, and runs would be slow. Load the modules of the card, whose plugin NCCL must find "
            "(LD_LIBRARY_PATH), or correct `networks` in the card."
        )


def make_card_path(root: Path, name: str) -> Path:
    """Return the path for a new machine card. Raise UserError if the name is not a valid file name, or is taken."""
    try:
        path = root / MACHINES / f"{check_name(name)}.yaml"
    except ValueError as error:
        raise UserError(f"--write {format_value(name)} is not accepted: {error}.") from None
    if path.exists():
        raise UserError(f"--write {name}: {path} exists. Write the card under another name, or move it away.")
    return path


def write_card(root: Path, machine: str, name: str, measured: LinkMeasurement) -> Path:
    """Write config/machines/NAME.yaml, the card of `machine` with the measured links, and return its path."""
    path, card, source = (
        make_card_path(root, name),
        load_machine_card(root, machine),
        MACHINES / f"{machine}.yaml",
    )
    document = read_yaml(root / source, str(source))
    per_node = card.slurm.ranks_per_node if card.slurm else max(row.size for row in measured.rows)
    document["links"] = fit_links(measured, per_node, by_nccl=card.engine == "nccl")
    origin = f"# {machine}.yaml, links by all-reduces on {platform.node()}, {time.strftime('%Y-%m-%d')}."
    write_text(path, f"{origin}\n{yaml.safe_dump(document, sort_keys=False)}")
    return path


def fit_links(
    measured: LinkMeasurement, per_node: int, *, on_cores: bool = False, by_nccl: bool = False
) -> dict[str, Any]:
    """Return the `links` of a card. Rows are sorted, because an axis takes the last row that is not above it.

    `on_cores` means that the ranks share the cores of one machine. The time of a message is then the time for which
    it occupies cores, and the links themselves take almost no time. `by_nccl` means that small all-reduces are trees
    after a minimum time, and not rings.
    """
    rows = sorted(measured.rows, key=lambda row: (row.before, row.size))
    inside = [row.gbs for row in rows if row.before * row.size <= per_node]
    leaving = [row.gbs * min(per_node, row.before) for row in rows if row.before * row.size > per_node]
    hops = 2 * (max(row.before * row.size for row in rows) - 1)
    latency = make_constant(measured.latency_us / hops, 1.5)
    intra, node = max(inside or leaving), max(leaving or inside)
    if on_cores:
        return {
            "devices_per_node": RANKS,
            "intra_gbs": make_constant(100.0, 2.0, ASSUMED),
            "node_gbs": make_constant(100.0, 2.0, ASSUMED),
            "intra_latency_us": latency,
            "latency_us": dict(latency),
            "all_to_all_share": make_constant(1.0, 2.0, ASSUMED),
            "cpu_gbs": make_constant(intra, 1.5),
        }
    return {
        "devices_per_node": per_node,
        "intra_gbs": make_constant(intra, 1.3),
        "node_gbs": make_constant(node, 1.3),
        "intra_latency_us": latency,
        "latency_us": dict(latency),
        "all_to_all_share": make_constant(0.5, 2.0, ASSUMED),
        **(_fit_small_calls(measured, per_node) if by_nccl else {}),
        "measured": [{**row.model_dump(), "gbs": float(f"{row.gbs:.4g}")} for row in rows],
    }


def _fit_small_calls(measured: LinkMeasurement, per_node: int) -> dict[str, Any]:
    """Return the minimum time of a call and the latencies, from the smallest all-reduces: two hops for each level."""
    levels = [
        count_tree_levels(
            AxisPlacement(row.before, row.size, min(row.size, max(1, per_node // row.before)), per_node)
        )
        for row in measured.rows
    ]
    terms = np.array([(1.0, 2.0 * inside, 2.0 * outside) for inside, outside in levels])
    call, *latencies = np.maximum(fit_terms(terms, np.array(measured.small_us)), LEAST_US).tolist()
    fitted = {"call_us": make_constant(call, 1.5)}
    for name, latency, hops in zip(("intra_latency_us", "latency_us"), latencies, terms.T[1:], strict=True):
        if hops.any():
            fitted[name] = make_constant(latency, 1.5)
    return fitted


LEAST_US = 0.1
"""The least time of a constant in microseconds, because a constant is positive."""
ASSUMED, MEASURED = "assumed", "measured by harness doctor"


def make_constant(value: float, within: float, source: str = "") -> dict[str, Any]:
    """Return a constant of a card. The default source says that it was measured today."""
    measured = f"{MEASURED}, {time.strftime('%Y-%m-%d')}"
    return {"value": float(f"{value:.4g}"), "within": within, "source": source or measured}


# The measurement in one rank.

LARGE = 1 << 24
"""The size in bytes of a buffer that is large enough to ignore latency."""
SECONDS = 15.0
"""The time for all axes together, in seconds."""
ROUNDS, WARM, SMALL_ROUNDS = 20, 2, 2000


def main() -> int:
    parser = argparse.ArgumentParser(prog="harness.prediction.calibration.links")
    parser.add_argument("--engine", type=Engine, required=True)
    parser.add_argument("--meeting", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    interfaces.add_interface_options(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in engine.LOGGING:  # a measurement always asks for the network
        os.environ.pop(name, None)
    at = launchers.read_place(os.environ)
    interfaces.choose_interface(options, at)
    device = engine.join_world(options.engine, at, rendezvous=options.meeting)
    try:
        result = measure_on_rank(at.world, device) | {"network": engine.read_network()}
    finally:
        engine.leave_world()
    if at.rank == 0:
        options.out.write_text(json.dumps(result), encoding="utf-8")
    return 0


def measure_on_rank(world: int, device: torch.device) -> dict[str, object]:
    """Return the bandwidth on every axis, and the time of the smallest all-reduce between all ranks."""
    shapes = list_axes(world)
    rows, small_us = [], []
    for before, size in shapes:
        grid = _make_grid(world, before, size, device)
        small_us.append(1e6 * _time_call(grid, grid[AxisName.Y], 4, SECONDS / len(shapes) / 2, SMALL_ROUNDS))
        seconds = _time_call(grid, grid[AxisName.Y], LARGE, SECONDS / len(shapes), ROUNDS)
        received = traffic.all_reduce(LARGE, size).received
        rows.append({"before": before, "size": size, "gbs": received / seconds / GB})
    grid = _make_grid(world, 1, world, device)
    latency = _time_call(grid, grid[AxisName.Y], 4, SECONDS / len(shapes), SMALL_ROUNDS)
    return {"rows": rows, "latency_us": 1e6 * latency, "small_us": small_us}


def list_axes(world: int) -> list[tuple[int, int]]:
    """Return all axes that the ranks can form, as pairs of the distance and the number of members of a group."""
    parts = [number for number in range(1, world + 1) if world % number == 0]
    return [
        (before, size) for before in parts for size in parts if size > 1 and (world // before) % size == 0
    ]


def _make_grid(world: int, before: int, size: int, device: torch.device) -> Grid:
    shape = {AxisName.X: world // (before * size), AxisName.Y: size, AxisName.Z: before}
    return Grid.build(shape, Ledger(recording=False), device)


def _time_call(grid: Grid, axis: Axis, size: int, patience: float, rounds: int) -> float:
    """Return the median time of an all-reduce on the slowest rank. No round starts after `patience` seconds."""
    buffer, taken = torch.ones(size // 4, device=axis.device), []
    started = time.perf_counter()
    for number in range(-WARM, rounds):
        grid.world.barrier()
        start = time.perf_counter()
        axis.all_reduce(buffer, tensor=TensorName.H)
        synchronize(axis.device)
        seconds = torch.tensor(
            [time.perf_counter() - start, time.perf_counter() - started], dtype=torch.float64
        )
        everyone = grid.world.all_gather(seconds[None].to(axis.device), tensor=TensorName.COUNT)
        buffer.fill_(1.0)
        if number >= 0:
            taken.append(float(everyone[:, 0].max()))
        if taken and float(everyone[:, 1].max()) > patience:
            break
    return median(taken)


if __name__ == "__main__":
    sys.exit(main())
