"""What `harness doctor` says of GPUs, by a driver's command and a torch that tests put in their place."""

import os
import sys
from pathlib import Path

import pytest
import torch

from harness.cli.doctor import self_test
from harness.cli.doctor.survey import SurveyItem, survey_gpus

pytestmark = pytest.mark.long


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that shows two GPUs."""
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\necho NVIDIA H100\necho NVIDIA H100\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    for name in ("SLURM_NTASKS_PER_NODE", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch for CUDA that sees the two GPUs."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(self_test, "find_gpu_faults", lambda _gpus: [])


def survey_items() -> dict[str, SurveyItem]:
    return {item.what: item for item in survey_gpus(lambda _: None)}


def list_missing() -> list[str]:
    return [what for what, item in survey_items().items() if item.state == "MISSING"]


def test_machine_without_a_gpu_does_not_import_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert survey_items().keys() == {"GPU"} and not list_missing()


@pytest.mark.usefixtures("two_gpus")
def test_torch_that_was_not_built_for_gpus_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    advice = survey_items()["GPU"].advice
    assert (
        advice.startswith("2 x NVIDIA H100, but torch") and "README.md says which torch to install" in advice
    )
    assert list_missing() == ["GPU"]


@pytest.mark.usefixtures("two_gpus", "for_cuda")
def test_devices_are_compared_with_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "start up to 2 ranks" in survey_items()["GPU"].advice and not list_missing()
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "4")
    assert "torch sees 2, and 4 ranks start on a node" in survey_items()["devices"].advice
    assert list_missing() == ["devices"]


@pytest.mark.usefixtures("two_gpus", "for_cuda")
def test_gpu_that_fails_its_test_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert survey_items()["self-test"].advice.startswith("kernels, sums over 2 GPUs and a small training")
    monkeypatch.setattr(self_test, "find_gpu_faults", lambda gpus: [f"GPU {gpus - 1}: one", "two"])
    assert "GPU 1: one; two" in survey_items()["self-test"].advice
    assert list_missing() == ["self-test"]


def test_ranks_that_cannot_start_are_a_fault() -> None:
    (fault,) = self_test.find_gpu_faults(1)
    assert fault.startswith("rank 0 of 1 failed first: UserError: The engine nccl needs a GPU")


@pytest.mark.usefixtures("two_gpus", "for_cuda")
def test_variable_that_hides_all_gpus_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES= hides them" in survey_items()["GPU"].advice and list_missing() == ["GPU"]
