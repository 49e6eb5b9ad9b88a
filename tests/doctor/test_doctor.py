"""What `harness doctor` says of Slurm, folders and profiles, by commands and files that tests put in their place."""

import json
import os
import re
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from harness.cli import main
from harness.doctor import survey
from harness.doctor.survey import SurveyItem, describe_file_system, survey_slurm
from harness.errors import EXTRAS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ANSWERS = {
    "srun": "",
    "scontrol": "ClusterName             = test\nMinJobAge               = 20 sec\nSLURM_VERSION           = 22.05.8",
    "sinfo": "ci* 2 nodes, 1:00:00",
    "sacctmgr": "m1234\nm99",
    "squeue": "2 nodes: n[1-2]",
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
    for name, told in ANSWERS.items():
        command = tmp_path / "bin" / name
        command.write_text(f"#!/bin/sh\ncat <<'END'\n{told}\nEND\n")
        command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("SLURM_JOB_ID", "XDG_CONFIG_HOME", "HARNESS_ROOT"):
        monkeypatch.delenv(name, raising=False)
    return place


def told(root: Path) -> dict[str, SurveyItem]:
    return {one.what: one for one in survey_slurm(str(root))}


def test_a_login_node_is_told_of_cluster_partitions_and_accounts(root: Path) -> None:
    found = told(root)
    assert "22.05.8" in found["Slurm"].found and "test" in found["Slurm"].found
    assert found["accounts"].found == "m1234, m99"
    assert "ci*" in found["partitions"].found
    assert "20 s" in found["MinJobAge"].found
    assert "unnamed" in found["site"].found
    assert "job" not in found and not any(one.missing for one in found.values())


def test_in_a_job_its_nodes_are_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert "17 on 2 nodes: n[1-2]" in told(root)["job"].found


def test_an_account_that_slurm_does_not_know_is_missing(root: Path) -> None:
    (root / "config" / "site.yaml").write_text("account: m77\nmachine: local\n")
    found = told(root)
    assert found["account"].missing and "m1234" in found["account"].found
    assert "one node" in found["machine"].found
    (root / "config" / "site.yaml").write_text("account: m99\nmachine: perlmutter\n")
    assert not told(root).keys() & {"account", "machine"}


def test_a_card_whose_nodes_could_not_meet_is_missing_its_interfaces(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("socket.gethostbyname", lambda _: "127.0.1.1")
    (root / "config" / "site.yaml").write_text("machine: cpu-cluster\n")
    found = told(root)["interfaces"]
    assert found.missing and "names none" in found.found
    monkeypatch.setattr("socket.gethostbyname", lambda _: "10.0.0.1")
    assert "interfaces" not in told(root)
    (root / "config" / "site.yaml").write_text("machine: perlmutter\n")
    monkeypatch.setenv("LOADEDMODULES", "cudatoolkit/12.4:python")
    found = told(root)["interfaces"]
    assert not found.missing and "hsn0" in found.found and "lo" in found.found, "a login node may have others"
    assert found.doubtful and told(root)["modules"].doubtful
    assert told(root)["modules"].found.startswith("not loaded: `module load nccl`")
    main(["doctor", "--root", str(root)])
    assert re.search(r"^CHECK +modules +not loaded", capsys.readouterr().out, re.MULTILINE)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert told(root)["interfaces"].missing


SINFO = """#!/bin/sh
echo 'ci*|up|1:00:00|1-infinite|2|64|512000|gpu:4|gpu,hbm40g'
echo 'cpu|up|1:00:00|1-infinite|8|256|512000|(null)|cpu'
"""


def test_the_jobs_of_the_card_are_held_against_the_partitions(root: Path, tmp_path: Path) -> None:
    """Perlmutter's card names no partition: any may take its jobs. It asks for 125 minutes and 128 processors."""
    (tmp_path / "bin" / "sinfo").write_text(SINFO)
    site = root / "config" / "site.yaml"
    site.write_text("machine: perlmutter\npartition: batch\n")
    assert "there is no partition batch" in told(root)["jobs"].found and told(root)["jobs"].missing
    site.write_text("machine: perlmutter\npartition: ci\n")
    assert "allows 60 minutes and the job asks for 125" in told(root)["jobs"].found
    site.write_text("machine: perlmutter\npartition: ci\njob_minutes: 30\n")
    if not describe_file_system(root).endswith("which nodes share"):
        assert "2 nodes" in told(root)["shared folder"].found and told(root)["shared folder"].doubtful
    assert "0 nodes with 128 processors" in told(root)["jobs"].found
    site.write_text("machine: perlmutter\njob_minutes: 30\n")
    assert not told(root)["builds"].missing, "the partition cpu has the feature"


def test_a_site_that_cannot_be_read_is_missing(root: Path) -> None:
    (root / "config" / "site.yaml").write_text("acount: m77\n")
    assert told(root)["site"].missing


def test_commands_that_nobody_answers_are_told_and_nothing_is_missing(root: Path, tmp_path: Path) -> None:
    (tmp_path / "bin" / "scontrol").write_text("#!/bin/sh\nexit 1\n")
    found = told(root)["Slurm"]
    assert "no controller" in found.found and not found.missing


def test_a_profile_of_the_users_own_that_ours_shadows_is_named(root: Path, tmp_path: Path) -> None:
    assert "profile" not in told(root)
    own = tmp_path / "home" / ".config" / "snakemake" / "slurm"
    own.mkdir(parents=True)
    assert str(own) in told(root)["profile"].found
    (root / "slurm").rmdir()
    assert "profile" not in told(root)


def test_the_file_system_is_that_of_the_nearest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "22 1 0:1 / / rw - ext4 /dev/a rw\n"
        f"23 22 0:2 / {tmp_path} rw - nfs4 b rw\n"
        f"24 23 0:3 / {tmp_path}/local rw - xfs c rw\n"
    )
    assert describe_file_system(tmp_path / "results", mounts) == "on nfs4, which nodes share"
    assert describe_file_system(tmp_path / "local" / "x", mounts) == "on xfs, which other nodes may not see"
    assert describe_file_system(Path("/etc"), mounts) == "on ext4, which other nodes may not see"


def without(monkeypatch: pytest.MonkeyPatch, *absent: str) -> None:
    """Every package is installed in the version 1.0, except these."""

    def version(name: str) -> str:
        if name in absent:
            raise PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(survey, "version", version)


def surveyed(capsys: pytest.CaptureFixture[str], root: Path) -> tuple[int, dict[str, Any], dict[str, str]]:
    """The exit code of `harness doctor`, its items as JSON has them, and the state of each in its text."""
    codes = [main(["doctor", "--root", str(root), "--json"])]
    items = {item["what"]: item for item in json.loads(capsys.readouterr().out)}
    codes.append(main(["doctor", "--root", str(root)]))
    heading, _, _, *table = capsys.readouterr().out.splitlines()
    lines = [line.split() for line in table]
    assert heading.startswith("This machine lacks" if codes[0] else "This machine has everything")
    assert codes[0] == codes[1]
    return codes[0], items, {what: state for state, what, *_ in lines}


def test_a_package_of_an_extra_is_not_missing_and_its_purpose_and_extra_are_told(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A compute node submits no workflow and draws no figure."""
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    extras = {name: extra for extra, names in EXTRAS.items() for name in names}
    without(monkeypatch, *extras)
    code, items, states = surveyed(capsys, root)
    assert code == 0
    for name, extra in extras.items():
        told = items[name]["found"]
        assert not items[name]["missing"] and states[name] == "ok"
        assert told.startswith("not installed; only ")
        assert told.endswith(f": pip install 'parallel-gnn-harness[{extra}]'")
    assert "only workflows need it" in items["snakemake"]["found"]


@pytest.mark.parametrize("name", [Requirement(line).name for line in PROJECT["dependencies"]])
def test_a_package_that_every_run_needs_is_missing(
    name: str, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without(monkeypatch, name)
    code, items, states = surveyed(capsys, root)
    assert code == 1 and items[name]["missing"] and states[name] == "MISSING"
    assert items[name]["found"] == f"not installed: pip install {name}"
    assert [what for what, state in states.items() if state == "MISSING"] == [name]
