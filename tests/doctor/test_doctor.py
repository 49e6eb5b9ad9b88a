"""What `harness doctor` says to do, by commands and files that tests put in their place."""

import json
import os
import re
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from harness.base.errors import EXTRAS
from harness.cli import main
from harness.cli.doctor import survey
from harness.cli.doctor.survey import SurveyItem, find_local_file_system, survey_folders, survey_slurm

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ANSWERS = {
    "srun": "",
    "scontrol": "ClusterName             = test\nMinJobAge               = 300 sec\nSLURM_VERSION           = 22.05.8",
    "sinfo": "",
    "sacctmgr": "m1234\nm99",
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout at a site whose Slurm says what ANSWERS has."""
    place = tmp_path / "checkout"
    (place / "datasets" / "catalog").mkdir(parents=True)
    (place / "config").mkdir()
    (place / "slurm").mkdir()
    (place / "config" / "machines").symlink_to(ROOT / "config" / "machines")
    (tmp_path / "bin").mkdir()
    for name, answer in ANSWERS.items():
        write_command(tmp_path, name, answer)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("SLURM_JOB_ID", "XDG_CONFIG_HOME", "HARNESS_ROOT"):
        monkeypatch.delenv(name, raising=False)
    return place


def write_command(folder: Path, name: str, answer: str) -> None:
    command = folder / "bin" / name
    command.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
    command.chmod(0o755)


def write_site(root: Path, text: str) -> None:
    (root / "config" / "site.yaml").write_text(text)


def survey_items(root: Path) -> dict[str, SurveyItem]:
    return {item.what: item for item in survey_slurm(str(root))}


def test_site_without_settings_names_the_keys_and_accounts(root: Path) -> None:
    (item,) = survey_slurm(str(root))
    assert (item.what, item.state) == ("site", "CHECK")
    assert "`machine`" in item.advice and "m1234, m99" in item.advice


def test_complete_site_has_no_items(root: Path) -> None:
    write_site(root, "account: m99\nmachine: perlmutter\n")
    (root / "config" / "machines").unlink()
    (root / "config" / "machines").mkdir()
    (root / "config" / "machines" / "perlmutter.yaml").write_text(
        "slurm: {ranks_per_node: 4, interfaces: [lo]}\n"
    )
    assert not survey_items(root)


def test_unknown_account_is_missing(root: Path) -> None:
    write_site(root, "account: m77\nmachine: local\n")
    found = survey_items(root)
    assert found["account"].state == "MISSING" and "m1234" in found["account"].advice
    assert found["machine"].state == "CHECK" and "one node" in found["machine"].advice


def test_short_memory_of_slurm_is_named(root: Path, tmp_path: Path) -> None:
    write_command(tmp_path, "scontrol", "MinJobAge = 20 sec")
    item = survey_items(root)["MinJobAge"]
    assert item.state == "CHECK" and "20 s" in item.advice and "60 s" in item.advice


def test_card_whose_nodes_cannot_meet_needs_interfaces(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("socket.gethostbyname", lambda _: "127.0.1.1")
    write_site(root, "machine: cpu-cluster\n")
    found = survey_items(root)["interfaces"]
    assert found.state == "MISSING" and "names none" in found.advice
    monkeypatch.setattr("socket.gethostbyname", lambda _: "10.0.0.1")
    assert "interfaces" not in survey_items(root)
    write_site(root, "machine: perlmutter\n")
    monkeypatch.setenv("LOADEDMODULES", "cudatoolkit/12.4:python")
    found = survey_items(root)["interfaces"]
    assert found.state == "CHECK", "a login node may have others"
    assert "hsn0" in found.advice and "lo" in found.advice
    assert survey_items(root)["modules"].state == "CHECK"
    assert survey_items(root)["modules"].advice.startswith("not loaded: `module load nccl`")
    main(["doctor", "--root", str(root)])
    assert re.search(r"^CHECK +modules +not loaded", capsys.readouterr().out, re.MULTILINE)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert survey_items(root)["interfaces"].state == "MISSING"


PARTITIONS = """\
ci*|up|1:00:00|1-infinite|2|64|512000|gpu:4|gpu,hbm40g
cpu|up|1:00:00|1-infinite|8|256|512000|(null)|cpu"""


def test_jobs_of_the_card_are_compared_with_the_partitions(root: Path, tmp_path: Path) -> None:
    """Perlmutter's card names no partition: any may take its jobs. It asks for 125 minutes and 128 processors."""
    write_command(tmp_path, "sinfo", PARTITIONS)
    write_site(root, "machine: perlmutter\npartition: batch\n")
    assert "there is no partition batch" in survey_items(root)["jobs"].advice
    assert survey_items(root)["jobs"].state == "MISSING"
    write_site(root, "machine: perlmutter\npartition: ci\n")
    assert "allows 60 minutes and the job asks for 125" in survey_items(root)["jobs"].advice
    write_site(root, "machine: perlmutter\npartition: ci\njob_minutes: 30\n")
    if find_local_file_system(root):
        folder = survey_items(root)["shared folder"]
        assert "2 nodes" in folder.advice and folder.state == "CHECK"
    assert "0 nodes with 128 processors" in survey_items(root)["jobs"].advice
    write_site(root, "machine: perlmutter\njob_minutes: 30\n")
    assert "builds" not in survey_items(root), "the partition cpu has the feature"


def test_unreadable_site_is_missing(root: Path) -> None:
    write_site(root, "acount: m77\n")
    assert survey_items(root)["site"].state == "MISSING"


def test_slurm_without_controller_is_to_be_checked(root: Path, tmp_path: Path) -> None:
    (tmp_path / "bin" / "scontrol").write_text("#!/bin/sh\nexit 1\n")
    found = survey_items(root)["Slurm"]
    assert "no controller" in found.advice and found.state == "CHECK"


def test_hidden_profile_of_the_user_is_named(root: Path, tmp_path: Path) -> None:
    assert "profile" not in survey_items(root)
    own = tmp_path / "home" / ".config" / "snakemake" / "slurm"
    own.mkdir(parents=True)
    assert str(own) in survey_items(root)["profile"].advice
    (root / "slurm").rmdir()
    assert "profile" not in survey_items(root)


def test_local_file_system_is_that_of_the_nearest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "22 1 0:1 / / rw - ext4 /dev/a rw\n"
        f"23 22 0:2 / {tmp_path} rw - nfs4 b rw\n"
        f"24 23 0:3 / {tmp_path}/local rw - xfs c rw\n"
    )
    assert find_local_file_system(tmp_path / "results", mounts) is None
    assert find_local_file_system(tmp_path / "local" / "x", mounts) == "xfs"
    assert find_local_file_system(Path("/etc"), mounts) == "ext4"


def test_folder_that_cannot_be_written_is_missing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not list(survey_folders(str(root)))
    monkeypatch.setattr(os, "access", lambda path, _: path != root / "datasets")
    (item,) = survey_folders(str(root))
    assert (item.what, item.state) == ("datasets", "MISSING") and "HARNESS_DATASETS" in item.advice


def uninstall(monkeypatch: pytest.MonkeyPatch, *absent: str) -> None:
    """Let every package be installed, except these."""

    def version(name: str) -> str:
        if name in absent:
            raise PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(survey, "version", version)
    monkeypatch.setattr(survey, "find_spec", lambda name: None if name in absent else name)


def run_doctor(capsys: pytest.CaptureFixture[str], root: Path) -> tuple[int, dict[str, Any]]:
    """Return the exit code of `harness doctor`, and its items as JSON has them, which its text has too."""
    codes = [main(["doctor", "--root", str(root), "--json"])]
    items = {item["what"]: item for item in json.loads(capsys.readouterr().out)}
    codes.append(main(["doctor", "--root", str(root)]))
    heading, _, _, *table = capsys.readouterr().out.splitlines()
    assert heading.startswith("This machine lacks" if codes[0] else "This machine has everything")
    assert codes[0] == codes[1]
    assert len(table) >= len(items)
    return codes[0], items


def test_package_of_an_extra_is_optional_and_its_purpose_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A compute node submits no workflow and draws no figure."""
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    uninstall(monkeypatch, *(name for names in EXTRAS.values() for name in names))
    code, items = run_doctor(capsys, root)
    assert code == 0
    for extra, names in EXTRAS.items():
        item = items[", ".join(names)]
        assert item["state"] == "optional"
        assert item["advice"].endswith(f": pip install 'parallel-gnn-harness[{extra}]'")
    assert "only workflows need it" in items[", ".join(EXTRAS["slurm"])]["advice"]


@pytest.mark.parametrize("name", [Requirement(line).name for line in PROJECT["dependencies"]])
def test_package_that_every_run_needs_is_missing(
    name: str, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    uninstall(monkeypatch, name)
    code, items = run_doctor(capsys, root)
    assert code == 1
    assert [what for what, item in items.items() if item["state"] == "MISSING"] == [name]
    assert items[name]["advice"] == f"not installed: pip install {name}"
