"""What `harness doctor` says of GPUs, by a driver's command and a torch that tests put in their place."""

import os
from pathlib import Path

import pytest
import torch

from harness.doctor import self_test, survey
from harness.doctor.survey import survey_gpus

pytestmark = pytest.mark.long

NAMES = ("NVIDIA H100", "NVIDIA H100")


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A driver that shows two GPUs, near cores that nobody may use and near cores that this process may use."""
    lines = [f"{name}, 580.95.05, 00000000:{number}5:00.0, 5, 16" for number, name in enumerate(NAMES)]
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(lines) + "\nEND\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    for name in ("SLURM_NTASKS_PER_NODE", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(survey, "BUS", tmp_path)
    monkeypatch.setattr(survey, "NODES", tmp_path)
    cores = (100000, min(os.sched_getaffinity(0)))
    for node, core in enumerate(cores):
        (tmp_path / f"0000:{node}5:00.0").mkdir()
        (tmp_path / f"0000:{node}5:00.0" / "numa_node").write_text(f"{node}\n")
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(f"{core}-{core + 3},{core + 8}\n")
    return tmp_path


@pytest.fixture
def for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch for CUDA that sees the two GPUs, which do not reach each other."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda _one, _other: False)
    monkeypatch.setattr(self_test, "find_gpu_faults", lambda _gpus: [])


def told() -> dict[str, str]:
    return {one.what: one.found for one in survey_gpus(lambda _: None)}


def missing() -> list[str]:
    return [one.what for one in survey_gpus(lambda _: None) if one.missing]


def test_a_machine_without_a_gpu_is_asked_nothing_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert told().keys() == {"GPU", "NCCL"}
    assert "none on this machine" in told()["GPU"] and not missing()


@pytest.mark.usefixtures("two_gpus")
def test_gpus_that_torch_was_not_built_for_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    found = told()
    assert (found["GPU"], found["driver"]) == ("2 x NVIDIA H100", "580.95.05")
    assert found["PCIe"] == "generation 5 x16, generation 5 x16"
    assert found["NUMA"] == "the GPUs are on the nodes 0, 1; this process cannot use any core near GPU 0"
    assert "the GPUs are not used" in found["torch's build"] and missing() == ["torch's build"]


@pytest.mark.usefixtures("two_gpus", "for_cuda")
def test_devices_are_held_against_ranks_and_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    found = told()
    assert "for CUDA 13.0" in found["torch's build"]
    assert found["peers"] == "no direct access between 0 and 1"
    assert "torch sees 2: that many ranks" in found["devices"] and not missing()
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "4")
    assert "torch sees 2, and 4 ranks start on a node" in told()["devices"] and missing() == ["devices"]


@pytest.mark.usefixtures("two_gpus", "for_cuda")
def test_a_gpu_that_fails_its_test_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told()["self-test"].startswith("kernels, sums over 2 GPUs and a small training")
    monkeypatch.setattr(self_test, "find_gpu_faults", lambda gpus: [f"GPU {gpus - 1}: one", "two"])
    assert (told()["self-test"], missing()) == ("GPU 1: one; two", ["self-test"])


def test_ranks_that_cannot_start_are_told_in_words() -> None:
    (words,) = self_test.find_gpu_faults(1)
    assert words.startswith("rank 0 of 1 failed first: UserError: The engine nccl needs a GPU")


@pytest.mark.usefixtures("two_gpus", "for_cuda")
def test_the_variable_that_hides_all_gpus_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES= hides them" in told()["torch's build"] and missing() == ["torch's build"]
