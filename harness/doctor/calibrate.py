"""Calibrates a machine card: measures the rates of this machine and the links between its ranks, for predictions.

launches           training steps on a tiny graph, over the number of their kernels: the share of the host is included
elementwise        kernels on tensors of several sizes
dense products     those of layers; on a GPU also in bfloat16
sparse products    graphs of two kinds and several sizes, at widths from 1 to 256 (`harness.doctor.spmm_rates`)
sampling           mini-batches, drawn where the graph is
links              all-reduces between ranks (`harness.doctor.links`)
copies, calls      on a GPU: to and from its host, and over NCCL (`harness.doctor.gpu_links`)

Intervals are those of sizes that were held out (`harness.doctor.term_fit`). On a GPU, a stage that fails is left out,
and the constant that the card has is kept.
"""

import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml

from harness.comm import engine
from harness.comm.engine import Engine
from harness.device import gpu_build, gpu_count, gpu_properties, is_gpu
from harness.doctor.gpu_links import make_unmeasured_links, measure_call_constant, measure_host_constants
from harness.doctor.kernel_rates import (
    count_cores_per_node,
    measure_dense_constants,
    measure_launch_constant,
    measure_memory_constant,
    measure_sampling_constant,
)
from harness.doctor.links import MEASURED, fit_links, make_constant, measure, new_card
from harness.doctor.measurements import Measuring, format_table
from harness.doctor.spmm_rates import measure_spmm_constants
from harness.doctor.survey import run_tool
from harness.documents import read_yaml
from harness.files import write_text
from harness.formatting import GB
from harness.predict.pricing import MICRO
from harness.progress import OnStep, ignore_step
from harness.spec.machine_card import MACHINES, MachineCard, Rates, load_machine, load_machine_card

SPMM_ENDS = 60.0
"""The seconds from the beginning of a calibration on a GPU after which no sparse product begins."""


class Calibration(NamedTuple):
    """The result of a calibration."""

    sections: dict[str, Any]
    """The sections of a card, and its `memory_gb` on a GPU."""
    notes: list[str]
    """What was left out and why, and what no section holds."""
    table: str
    """All measured times, as CSV."""
    device: str
    """The name of the GPU, or `this machine`."""


def default_rank_count(root: Path, machine: str) -> int:
    """Two ranks, or one on a machine with a single GPU."""
    return 1 if load_machine(root, machine).engine == "nccl" and gpu_count() == 1 else 2


def calibrate_machine(
    root: Path, machine: str, ranks: int, tell: Callable[[str], None], on_step: OnStep = ignore_step
) -> Calibration:
    """The sections of a card, as measured here and now."""
    card = load_machine_card(root, machine)
    device = engine.select_device(Engine(card.engine), 0)
    torch.set_num_threads(card.threads_per_rank)
    measuring = Measuring(load_machine(root, machine), device, measure_device(device), on_step)
    if is_gpu(device):
        measuring.ends = time.monotonic() + SPMM_ENDS
        sections = _measure_gpu_sections(measuring, card, root, ranks, tell)
    else:
        rates = _measure_rates(measuring, tell)
        sections = {
            "rates": rates,
            "links": fit_links(measure(root, machine, ranks, tell), ranks, on_cores=True),
        }
    name = gpu_properties(device).name if is_gpu(device) else "this machine"
    return Calibration(sections, measuring.notes, format_table(measuring.times), name)


def measure_device(device: torch.device) -> str:
    """The source of what is measured on a device: the GPU, its driver, the versions of CUDA and torch, and the date."""
    date = time.strftime("%Y-%m-%d")
    if not is_gpu(device):
        return f"{MEASURED}, {date}"
    drivers = run_tool("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") or ""
    driver = drivers.partition("\n")[0]  # one line for each GPU
    versions = [f"driver {driver}" if driver else "", gpu_build() or "", f"torch {torch.__version__}"]
    return f"{MEASURED} on {gpu_properties(device).name}, {', '.join(filter(None, versions))}, {date}"


def _measure_rates(measuring: Measuring, tell: Callable[[str], None]) -> dict[str, Any]:
    """The constants of the section `rates` that could be measured."""
    found: dict[str, Any] = {}

    def stage(name: str, work: Callable[[], dict[str, Any]]) -> None:
        tell(f"measuring {name}")
        found.update(measuring.attempt(name, work) or {})

    def seconds_of_launch() -> float:
        return MICRO * float(found["launch_us"]["value"]) if "launch_us" in found else 0.0

    def bandwidth() -> float:
        return GB * float(found["memory_gbs"]["value"]) if "memory_gbs" in found else float("inf")

    stage("launches", lambda: {"launch_us": measure_launch_constant(measuring)})
    stage(
        "elementwise kernels", lambda: {"memory_gbs": measure_memory_constant(measuring, seconds_of_launch())}
    )
    stage("dense products", lambda: measure_dense_constants(measuring, seconds_of_launch(), bandwidth()))
    stage("sampling", lambda: {"sample_ns": measure_sampling_constant(measuring)})
    stage("sparse products", lambda: {"spmm": measure_spmm_constants(measuring, seconds_of_launch())})
    found["efficiency"] = make_constant(1.0, 1.0, "measured rates are reached")
    return {name: found[name] for name in Rates.model_fields if name in found} | count_cores_per_node(
        measuring.device
    )


def _measure_gpu_sections(
    measuring: Measuring, card: MachineCard, root: Path, ranks: int, tell: Callable[[str], None]
) -> dict[str, Any]:
    """All that a GPU can tell; a constant that was not measured stays as the card has it."""
    sections: dict[str, Any] = {"memory_gb": round(gpu_properties(measuring.device).memory / GB, 1)}
    before = card.model_dump(mode="json", include={"rates", "links"}, exclude_defaults=True)
    rates = before.get("rates", {}) | _measure_rates(measuring, tell)
    needed = [name for name, field in Rates.model_fields.items() if field.is_required()]
    if missing := [name for name in needed if name not in rates]:
        measuring.notes.append(
            f"rates left out: {', '.join(missing)} could not be measured, and the card has none"
        )
    else:
        sections["rates"] = rates
    between = None
    if ranks > 1:
        between = measuring.attempt("links between GPUs", lambda: measure(root, card.name, ranks, tell))
    per_node = card.slurm.ranks_per_node if card.slurm else gpu_count()
    known = (
        fit_links(between, per_node) if between else before.get("links") or make_unmeasured_links(per_node)
    )
    tell("measuring copies between host and GPU")
    host = measuring.attempt("copies between host and GPU", partial(measure_host_constants, measuring)) or {}
    tell("measuring calls over NCCL")
    call = measuring.attempt("calls over NCCL", partial(measure_call_constant, measuring)) or {}
    sections["links"] = known | host | call
    return sections


def write_sections(root: Path, machine: str, sections: dict[str, Any]) -> Path:
    """Replaces sections of a card, and leaves all others as they are, their comments included."""
    path = root / MACHINES / f"{machine}.yaml"
    text = path.read_text(encoding="utf-8")
    for name in sections:
        text = re.sub(rf"(?m)^{name}:.*\n(?:[ #].*\n|\n(?= ))*", "", text)
    write_text(path, text.rstrip() + "\n\n" + yaml.safe_dump(sections, sort_keys=False, width=120))
    return path


def write_new_card(root: Path, machine: str, name: str, done: Calibration) -> Path:
    """Writes config/machines/NAME.yaml: the card of `machine` with what was measured."""
    path = new_card(root, name)
    write_text(path, format_new_card(root, machine, done))
    return path


def format_new_card(root: Path, machine: str, done: Calibration) -> str:
    """The card of `machine` with what was measured, which its description names."""
    source = MACHINES / f"{machine}.yaml"
    what = "rates, memory and links" if "rates" in done.sections else "memory and links"
    description = f"{done.device}, {what} by harness doctor --calibrate, {time.strftime('%Y-%m-%d')}"
    document = read_yaml(root / source, str(source)) | {"description": description} | done.sections
    origin = f"# {machine}.yaml as calibrated. Every constant names its source; `assumed` was not measured."
    return f"{origin}\n{yaml.safe_dump(document, sort_keys=False, width=120)}"
