"""The calibration of a GPU, on a fake one: its form, and that a stage which fails is left out alone."""

import csv
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import pytest

from harness.prediction.calibration import calibrate, gpu_links, kernel_rates, measurements, spmm_rates
from harness.prediction.calibration.calibrate import (
    Calibration,
    calibrate_machine,
    write_new_card,
    write_sections,
)
from harness.prediction.epoch import check_card
from harness.prediction.pricing import list_constants
from harness.spec.machine_card import load_machine_card

ROOT = Path(__file__).parents[2]
TOO_LARGE = 1 << 45


def in_small(root: Path, bound_by_host: float = inf) -> tuple[Calibration, list[str]]:
    """A calibration with small sizes and a copy that no memory holds, and what it told.

    A fake GPU has executed a kernel when the host has issued it, so no kernel is left out for its issue.
    """
    told: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measurements, "BOUND_BY_HOST", bound_by_host)
        patch.setattr(kernel_rates, "LAYERS_ON_GPU", ((256, 16, 16), (64, 64, 64)))
        patch.setattr(kernel_rates, "KINDS", ("gcn", "sage"))
        patch.setattr(kernel_rates, "BATCHES", (16, 64))
        patch.setattr(kernel_rates, "SAMPLED_SCALE", 8)
        patch.setattr(spmm_rates, "WIDTHS_ON_GPU", (1, 2, 16, 64))
        patch.setattr(spmm_rates, "WIDTHS_IN_HALF", (64,))
        patch.setattr(spmm_rates, "LARGEST", 9)
        patch.setattr(gpu_links, "COPIED", (1 << 10, 1 << 13, 1 << 20, 1 << 22, TOO_LARGE))
        patch.setattr(gpu_links, "MANY", 1 << 12)
        return calibrate_machine(root, "local-gpu", 1, told.append), told


def project(folder: Path) -> Path:
    """A project with the card `local-gpu`."""
    cards = folder / "config" / "machines"
    cards.mkdir(parents=True)
    (cards / "local-gpu.yaml").write_text((ROOT / "config" / "machines" / "local-gpu.yaml").read_text())
    return folder


def test_a_gpu_has_a_card_after_its_calibration(on_gpus: Callable[..., list[Any]], tmp_path: Path) -> None:
    root = project(tmp_path)
    ((done, told),) = on_gpus(1, in_small, root)
    write_new_card(root, "local-gpu", "fake", done)
    card = load_machine_card(root, "fake")
    check_card(card)
    assert card.rates and card.links
    assert (card.device, card.engine, card.memory_gb) == ("cuda", "nccl", 16.0)
    measured = (
        *(card.rates.tflops, card.rates.tflops_half, card.rates.launch_us, card.rates.issue_us),
        card.links.host_gbs,
    )
    assert all(each and each.source.startswith("measured") for each in measured)
    assert card.rates.spmm.cache_mb in (pytest.approx(1 / 16, rel=1e-3), pytest.approx(1 / 32, rel=1e-3))
    assert card.rates.cores_per_node is None
    assert "CUDA graph" in card.rates.launch_us.source and card.rates.issue_us
    assert "CUDA graph" not in card.rates.issue_us.source
    for floor in (card.links.call_us, card.links.exchange_us):
        assert floor and "a floor" in floor.source
    assert card.links.intra_gbs.source.startswith("assumed") and card.links.intra_gbs.within >= 4
    assert {"links.host_gbs", "links.host_latency_us"} <= list_constants(card).keys()
    assert sum("NCCL" in words for words in told) == 1
    (left_out,) = (note for note in done.notes if "left out" in note)
    assert f"{TOO_LARGE:,} bytes" in left_out
    kernels = {line.partition(",")[0] for line in done.table.splitlines()}
    assert {"sparse", "dense", "add", "copy up", "copy down", "all_to_all", "broadcast"} <= kernels


def test_no_rate_is_fitted_to_kernels_that_wait_for_the_host(
    on_gpus: Callable[..., list[Any]], tmp_path: Path
) -> None:
    """With a bound below 0, all do. They are still saved."""
    ((done, _),) = on_gpus(1, in_small, project(tmp_path), -1.0)
    notes = [note for note in done.notes if "RunError" in note]
    for count, note in zip((8, 2, 72), notes, strict=True):
        assert f"all {count} " in note
    assert "rates" not in done.sections and "host_gbs" in done.sections["links"]
    rows = list(csv.DictReader(done.table.splitlines()))
    assert {"sparse", "dense", "add"} <= {row["kernel"] for row in rows if float(row["issue_seconds"]) > 0}


def with_failing_stages(root: Path) -> list[dict[str, Any] | list[str]]:
    """The sections and the notes of two calibrations whose stages fail, before and after the card has constants."""

    def fail(*_: object) -> None:
        raise RuntimeError("no\nmore")

    known = {"value": 7.0, "within": 1.5, "source": "known"}
    with pytest.MonkeyPatch.context() as patch:
        for stage in (
            "measure_dense_constants",
            "measure_spmm_constants",
            "measure_call_constants",
            "measure_host_constants",
        ):
            patch.setattr(calibrate, stage, fail)
        for stage in ("launch", "issue", "memory", "sampling"):
            patch.setattr(calibrate, f"measure_{stage}_constant", lambda *_: known)
        before = calibrate_machine(root, "local-gpu", 1, lambda _: None)
        spmm = dict.fromkeys(("entry_column", "entry", "row_column", "row", "call", "within"), 1.0)
        rates = dict.fromkeys(("tflops", "memory_gbs", "efficiency", "sample_ns"), known)
        rates["launch_us"] = {**known, "value": 9.0}
        links = {**gpu_links.make_unmeasured_links(4), "node_gbs": known, "host_gbs": known}
        written = {"rates": {**rates, "spmm": {**spmm, "source": "known"}}, "links": links}
        write_sections(root, "local-gpu", written)
        after = calibrate_machine(root, "local-gpu", 1, lambda _: None)
    return [before.sections, before.notes, after.sections, after.notes]


def test_a_stage_that_fails_leaves_the_others_and_what_the_card_has(
    on_gpus: Callable[..., list[Any]], tmp_path: Path
) -> None:
    root = project(tmp_path)
    ((before, notes, after, again),) = on_gpus(1, with_failing_stages, root)
    assert "RuntimeError: no" in notes[0] and "tflops, spmm" in notes[2]
    assert before.keys() == {"memory_gb", "links"} and "host_gbs" not in before["links"]
    assert len(again) == len(notes) - 1, "the card has the constants now"
    assert after["rates"]["tflops"]["value"] == after["rates"]["launch_us"]["value"] == 7.0
    assert after["links"]["devices_per_node"] == 4
    assert after["links"]["node_gbs"]["source"] == after["links"]["host_gbs"]["source"] == "known"
    write_sections(root, "local-gpu", after)
    assert load_machine_card(root, "local-gpu").memory_gb == 16.0
