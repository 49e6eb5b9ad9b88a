"""Calibrates a machine card: measures the rates of this machine and the links between its ranks, for predictions.

launches           on a CPU: training steps on a tiny graph, divided by their number of kernels
                   on a GPU: kernels of a CUDA graph, without the time of the host
events             on a CPU: epochs of several strategies on a tiny graph, without their kernels and calls
issue              on a GPU: the training steps, whose kernels the host issues more slowly than the GPU executes them
elementwise        kernels on tensors of several sizes
dense products     in the shapes of layers; on a GPU also in bfloat16
sparse products    graphs of two kinds and several sizes, at widths from 1 to 256 (`spmm_rates`)
sampling           mini-batches, sampled on the device that holds the graph
links              all-reduces between ranks (`links`)
copies, calls      on a GPU: to and from its host, and over NCCL (`gpu_links`)

Intervals come from the errors at held-out sizes (`term_fit`). If a stage fails on a GPU, it is skipped, and the card
keeps the constant that it has.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any, NamedTuple

import torch
import yaml

from harness.base.children import die_with_parent, run_tool
from harness.base.device import gpu_build, gpu_count, gpu_properties, is_gpu
from harness.base.errors import RunError, UserError
from harness.base.files import write_text
from harness.base.formatting import GB
from harness.base.progress import Log, OnStep, ignore_step
from harness.comm import engine
from harness.comm.engine import Engine
from harness.prediction.calibration.gpu_links import (
    make_unmeasured_links,
    measure_call_constants,
    measure_host_constants,
)
from harness.prediction.calibration.kernel_rates import (
    count_cores_per_node,
    measure_dense_constants,
    measure_event_constant,
    measure_issue_constant,
    measure_launch_constant,
    measure_memory_constant,
    measure_sampling_constant,
)
from harness.prediction.calibration.links import (
    MEASURED,
    check_link_ranks,
    fit_links,
    make_card_path,
    make_constant,
    measure_links,
)
from harness.prediction.calibration.measurements import Calibrator, format_table
from harness.prediction.calibration.spmm_rates import measure_spmm_constants
from harness.prediction.pricing import MICRO
from harness.runtime.launch.fork_server import describe_exit
from harness.runtime.launch.rank_starter import make_rank_settings
from harness.runtime.provenance import describe_machine
from harness.spec.machine_card import (
    MACHINES,
    MachineCard,
    Rates,
    load_machine,
    load_machine_card,
    read_machine_document,
)

SPMM_ENDS = 60.0
"""Seconds after the start of a calibration on a GPU during which measurements of sparse products may start."""


class Calibration(NamedTuple):
    """The result of a calibration."""

    sections: dict[str, Any]
    """The sections of a card, with the machine on which `rates` were measured; on a GPU also its `memory_gb`."""
    notes: list[str]
    """What was skipped and why, and facts that have no place in a section."""
    table: str
    """All measured times, as CSV."""
    device: str
    """The name of the GPU, or `this machine`."""


def default_rank_count(root: Path, machine: str) -> int:
    """Return the number of ranks that measure links by default: 2, or 1 on a machine with a single GPU."""
    return 1 if load_machine(root, machine).engine == "nccl" and gpu_count() == 1 else 2


def calibrate_machine(
    root: Path, machine: str, ranks: int, report: Log, on_step: OnStep = ignore_step
) -> Calibration:
    """Measure the constants of a machine card on this machine."""
    card = load_machine_card(root, machine)
    device = engine.select_device(Engine(card.engine), 0)
    torch.set_num_threads(card.threads_per_rank)
    calibrator = Calibrator(load_machine(root, machine), device, format_source(device), on_step)
    sections: dict[str, Any]
    if is_gpu(device):
        calibrator.ends = time.monotonic() + SPMM_ENDS
        sections = _measure_gpu_sections(calibrator, card, root, ranks, report)
    else:
        check_link_ranks(ranks)  # before kernels are measured
        rates = _measure_rates(calibrator, report)
        sections = {
            "rates": rates,
            "links": fit_links(measure_links(root, machine, ranks, report), ranks, on_cores=True),
        }
    if "rates" in sections:
        sections["measured_on"] = describe_machine(card.device).model_dump(exclude_none=True)
    name = gpu_properties(device).name if is_gpu(device) else "this machine"
    return Calibration(sections, calibrator.notes, format_table(calibrator.times), name)


def calibrate_in_new_process(
    root: Path, machine: str, ranks: int, report: Log, on_step: OnStep = ignore_step
) -> Calibration:
    """Measure the constants of a machine card in a process that starts with the settings of the card, as ranks do.

    Allocators read their settings before Python starts. Without the card's settings, each call writes a large result to
    fresh pages, and products take up to three times as long as in a run.
    """
    settings = make_rank_settings(load_machine(root, machine), root)
    command = [
        sys.executable,
        "-P",
        "-m",
        "harness.prediction.calibration.calibrate",
        str(root),
        machine,
        str(ranks),
    ]
    done: Calibration | None = None
    with Popen(
        command,
        env={**os.environ, **settings},
        stdout=PIPE,
        text=True,
        encoding="utf-8",
        preexec_fn=die_with_parent(os.getpid()),  # noqa: PLW1509  no thread holds a lock that it needs
    ) as process:
        assert process.stdout
        for line in process.stdout:
            kind, *told = json.loads(line)
            match kind:
                case "report":
                    report(*told)
                case "step":
                    on_step(*told)
                case "refused":
                    raise UserError(*told)
                case "failed":
                    raise RunError(*told)
                case "done":
                    done = Calibration(*told)
    if done is None:
        raise RunError(f"the calibration ended early: {describe_exit(process.returncode)}.")
    return done


def main() -> None:
    """Calibrate, and write lines of JSON: reports, steps, and the calibration or an error."""
    root, machine, ranks = sys.argv[1:]
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not come between

    def tell(*told: object) -> None:
        print(json.dumps(told), file=out, flush=True)

    try:
        done = calibrate_machine(
            Path(root), machine, int(ranks), partial(tell, "report"), partial(tell, "step")
        )
    except UserError as error:
        tell("refused", str(error))
    except RunError as error:
        tell("failed", str(error))
    else:
        tell("done", *done)


def format_source(device: torch.device) -> str:
    """Return the source of constants measured on a device: the date; for a GPU also its driver, CUDA and torch."""
    date = time.strftime("%Y-%m-%d")
    if not is_gpu(device):
        return f"{MEASURED}, {date}"
    drivers = run_tool("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") or ""
    driver = drivers.partition("\n")[0]  # one line for each GPU
    versions = [f"driver {driver}" if driver else "", gpu_build() or "", f"torch {torch.__version__}"]
    return f"{MEASURED} on {gpu_properties(device).name}, {', '.join(filter(None, versions))}, {date}"


def _measure_rates(calibrator: Calibrator, report: Log) -> dict[str, Any]:
    """Return the constants of the section `rates` that could be measured."""
    found: dict[str, Any] = {}

    def run_stage(name: str, measure: Callable[[], dict[str, Any]]) -> None:
        report(f"measuring {name}")
        found.update(calibrator.try_stage(name, measure) or {})

    def get_launch_seconds() -> float:
        return MICRO * float(found["launch_us"]["value"]) if "launch_us" in found else 0.0

    def get_bandwidth() -> float:
        return GB * float(found["memory_gbs"]["value"]) if "memory_gbs" in found else float("inf")

    if is_gpu(calibrator.device):
        run_stage("the issue of kernels", lambda: {"issue_us": measure_issue_constant(calibrator)})
    run_stage("launches", lambda: {"launch_us": measure_launch_constant(calibrator)})
    if not is_gpu(calibrator.device):
        run_stage(
            "the code around kernels",
            lambda: {"event_us": measure_event_constant(calibrator, get_launch_seconds())},
        )
    run_stage(
        "elementwise kernels",
        lambda: {"memory_gbs": measure_memory_constant(calibrator, get_launch_seconds())},
    )
    run_stage(
        "dense products",
        lambda: measure_dense_constants(calibrator, get_launch_seconds(), get_bandwidth()),
    )
    run_stage("sampling", lambda: {"sample_ns": measure_sampling_constant(calibrator)})
    run_stage("sparse products", lambda: {"spmm": measure_spmm_constants(calibrator, get_launch_seconds())})
    found["efficiency"] = make_constant(1.0, 1.0, "measured rates are reached")
    return {name: found[name] for name in Rates.model_fields if name in found} | count_cores_per_node(
        calibrator.device
    )


def _measure_gpu_sections(
    calibrator: Calibrator, card: MachineCard, root: Path, ranks: int, report: Log
) -> dict[str, Any]:
    """Return the sections that a GPU can measure. A constant that was not measured keeps its value in the card."""
    sections: dict[str, Any] = {"memory_gb": round(gpu_properties(calibrator.device).memory / GB, 1)}
    before = card.model_dump(mode="json", include={"rates", "links"}, exclude_defaults=True)
    rates = before.get("rates", {}) | _measure_rates(calibrator, report)
    needed = [name for name, field in Rates.model_fields.items() if field.is_required()]
    if missing := [name for name in needed if name not in rates]:
        calibrator.notes.append(
            f"rates left out: {', '.join(missing)} could not be measured, and the card has none"
        )
    else:
        sections["rates"] = rates
    between = None
    if ranks > 1:
        between = calibrator.try_stage(
            "links between GPUs", lambda: measure_links(root, card.name, ranks, report)
        )
    per_node = card.slurm.ranks_per_node if card.slurm else gpu_count()
    known = (
        fit_links(between, per_node, by_nccl=True)
        if between
        else before.get("links") or make_unmeasured_links(per_node)
    )
    report("measuring copies between host and GPU")
    host = (
        calibrator.try_stage("copies between host and GPU", partial(measure_host_constants, calibrator)) or {}
    )
    report("measuring calls over NCCL")
    call = calibrator.try_stage("calls over NCCL", partial(measure_call_constants, calibrator)) or {}
    # Calls between GPUs give a better floor than calls in a world of one rank.
    sections["links"] = call | known | host if between else known | host | call
    return sections


def write_sections(root: Path, machine: str, sections: dict[str, Any]) -> Path:
    """Replace sections of a card and return its path. Other sections keep their text, including comments.

    The section `checked` is removed, because it counts runs that the old constants predicted, and with new rates
    `fitted_to`, because it names results to which the old ones were fitted.
    """
    path = root / MACHINES / f"{machine}.yaml"
    text = path.read_text(encoding="utf-8")
    for name in (*sections, *_list_outdated(sections)):
        text = re.sub(rf"(?m)^{name}:.*\n(?:[ #].*\n|\n(?= ))*", "", text)
    write_text(path, text.rstrip() + "\n\n" + yaml.safe_dump(sections, sort_keys=False, width=120))
    return path


def _list_outdated(sections: dict[str, Any]) -> list[str]:
    """Return the sections of a card that describe the constants that new sections replace."""
    return ["checked", "fitted_to"] if "rates" in sections else ["checked"]


def write_new_card(root: Path, machine: str, name: str, done: Calibration) -> Path:
    """Write config/machines/NAME.yaml, the card of `machine` with the measured constants, and return its path."""
    path = make_card_path(root, name)
    write_text(path, format_new_card(root, machine, done))
    return path


def format_new_card(root: Path, machine: str, done: Calibration) -> str:
    """Return the text of a new card: that of `machine` with the measured constants, and a description of them."""
    what = "rates, memory and links" if "rates" in done.sections else "memory and links"
    description = f"{done.device}, {what} by harness doctor --calibrate, {time.strftime('%Y-%m-%d')}"
    document = read_machine_document(root, machine) | {"description": description} | done.sections
    for outdated in _list_outdated(done.sections):
        document.pop(outdated, None)
    origin = f"# {machine}.yaml as calibrated. Every constant names its source; `assumed` was not measured."
    return f"{origin}\n{yaml.safe_dump(document, sort_keys=False, width=120)}"


if __name__ == "__main__":
    main()
