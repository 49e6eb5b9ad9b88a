"""What jobs request, and the executor's command lines for it. docs/how-to/slurm.md lists its faults D1 to D5."""

import re
from math import ceil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from snakemake_executor_plugin_slurm.submit_string import get_submit_command
from snakemake_executor_plugin_slurm.utils import set_gres_string
from snakemake_executor_plugin_slurm.validation import validate_slurm_extra

from harness.runtime.slurm import resources
from harness.runtime.slurm.executor import SteadyExecutor
from harness.runtime.slurm.resources import (
    JOB_KEYS,
    Resources,
    Site,
    explain_refusal,
    load_site,
    load_slurm,
    parse_partitions,
    request_build,
    request_job,
    request_node,
    request_place,
)
from harness.runtime.slurm.srun import make_step_command
from harness.spec.machine_card import Builds, Constant, Slurm, list_machines

ROOT = Path(__file__).parents[2]
CLUSTERS = [name for name in list_machines(ROOT) if load_slurm(ROOT, name, Site())]
WORLDS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 31, 64, 100, 2048]


class Asked(dict[str, Any]):
    """The resources of a job as the executor finds them: as keys and as attributes."""

    __getattr__ = dict.__getitem__


def sbatch(resources: Resources) -> str:
    """The executor's own line. Snakemake leaves out what is None."""
    asked = SimpleNamespace(
        resources=Asked({key: value for key, value in resources.items() if value is not None}), threads=1
    )
    told = dict.fromkeys(("run_uuid", "slurm_logfile", "comment_str", "workdir"), "x")
    if "slurm_extra" in asked.resources:
        validate_slurm_extra(asked)
    return str(get_submit_command(asked, {**told, "account": "", "partition": ""})) + set_gres_string(asked)


def flags(line: str) -> dict[str, str]:
    return dict(re.findall(r"(--[a-z-]+)[= ]?([^\s-][^\s]*)?", line))


def card(name: str) -> Slurm:
    found = load_slurm(ROOT, name, Site())
    assert found
    return found


def test_there_is_a_preset_for_each_kind_of_machine() -> None:
    assert {"perlmutter", "frontier", "tuolumne", "summit", "cpu-cluster", "gpu-cluster"} <= set(CLUSTERS)
    devices = {name: card(name).gpus_per_node for name in CLUSTERS}
    assert (devices["perlmutter"], devices["frontier"], devices["tuolumne"], devices["summit"]) == (
        4,
        8,
        4,
        6,
    )
    assert all(count in (0, card(name).ranks_per_node) for name, count in devices.items())


@pytest.mark.parametrize("ranks", WORLDS)
@pytest.mark.parametrize("name", CLUSTERS)
def test_a_job_holds_its_ranks_and_no_node_more(name: str, ranks: int) -> None:
    slurm = card(name)
    line = flags(sbatch(request_job([ranks], slurm, 30)))
    nodes, tasks = int(line["--nodes"]), line.get("--ntasks-per-node")
    assert nodes == ceil(ranks / slurm.ranks_per_node)
    holds = int(line["--ntasks"]) if tasks is None else nodes * int(tasks)
    assert ranks <= holds < ranks + slurm.ranks_per_node
    assert tasks is None or int(tasks) <= slurm.ranks_per_node
    assert int(line["--cpus-per-task"]) == slurm.cpus_per_rank
    assert line.get("--gpus-per-node", "0") == str(slurm.gpus_per_node)


@pytest.mark.parametrize("ranks", WORLDS)
@pytest.mark.parametrize("name", [name for name in CLUSTERS if card(name).scheduler == "slurm"])
def test_d1_a_step_says_everything_itself(name: str, ranks: int) -> None:
    """The executor takes Slurm's variables away, and an srun that needs them starts one task a node."""
    slurm, line = card(name), flags(" ".join(make_step_command(ranks, card(name))))
    assert int(line["--ntasks"]) == ranks
    assert int(line["--nodes"]) == ceil(ranks / slurm.ranks_per_node)
    assert line["--distribution"] == f"plane={min(ranks, slurm.ranks_per_node)}", "one node after the other"
    assert int(line["--cpus-per-task"]) == slurm.cpus_per_rank
    assert line["--kill-on-bad-exit"] == "1"
    in_job = flags(sbatch(request_job([ranks], slurm, 30)))
    assert line.get("--gpus-per-node") == in_job.get("--gpus-per-node"), "one place says it to both"


@pytest.mark.parametrize("name", CLUSTERS)
def test_tasks_never_become_tasks_of_a_gpu(name: str) -> None:
    for ranks in WORLDS:
        asked = request_job([ranks], card(name), 30)
        assert not asked.keys() & {"gres", "gpu", "gpus", "gpu_model", "tasks_per_gpu"}
        assert "ntasks-per-gpu" not in sbatch(asked)


@pytest.mark.parametrize("name", CLUSTERS)
def test_one_rank_is_no_mpi(name: str) -> None:
    """The executor refuses `mpi` with one task, and goes by its mere presence elsewhere."""
    asked = request_job([1], card(name), 30)
    assert asked["mpi"] is None
    assert flags(sbatch(asked))["--ntasks"] == "1"
    assert request_job([1, 2], card(name), 30)["mpi"] == "srun"


def test_one_rank_a_node_says_so_in_the_way_that_the_executor_takes() -> None:
    line = flags(sbatch(request_job([3], Slurm(ranks_per_node=1), 30)))
    assert (line["--nodes"], line["--ntasks"]) == ("3", "3")


def test_a_shared_job_is_as_large_as_its_largest_run() -> None:
    line = flags(sbatch(request_job([1, 2, 4], card("perlmutter"), 61.2)))
    assert (line["--nodes"], line["--ntasks-per-node"]) == ("1", "4")
    assert " -t 62 " in sbatch(request_job([1, 2, 4], card("perlmutter"), 61.2))


def test_memory_is_asked_for_where_a_card_says_how_much() -> None:
    assert "--mem" not in flags(sbatch(request_job([4], card("perlmutter"), 30)))
    assert flags(sbatch(request_job([4], Slurm(ranks_per_node=4, memory_mb=5000), 30)))["--mem"] == "5000"


def test_a_machine_whose_card_knows_no_slurm_has_one_node() -> None:
    line = flags(sbatch(request_node(6, None, 30)))
    assert (line["--nodes"], line["--ntasks"], line["--cpus-per-task"]) == ("1", "1", "6")
    assert request_node(6, None, 30).keys() == set(JOB_KEYS)


def test_builds_go_where_the_card_says_and_take_no_gpu() -> None:
    slurm = Slurm(
        ranks_per_node=4,
        cpus_per_rank=32,
        gpus_per_node=4,
        constraint="gpu",
        qos="regular",
        sbatch="--exclusive",
        builds=Builds(constraint="cpu", qos="shared", cpus=8, memory_mb=16000),
    )
    line = sbatch(request_build(Site(account="m1"), slurm, 1_700_000_000))
    assert "-C cpu --qos=shared --mem 16000 --nodes=1 --ntasks=1 --cpus-per-task=8" in line
    assert "gpu" not in line and "exclusive" not in line
    known = Constant(value=1e6, within=1, source="a test")
    fast = slurm.model_copy(update={"builds": Builds(entries_per_second=known)})
    assert [
        request_build(Site(), fast, entries)["runtime"] for entries in (60_000_000, 600_000_000, None)
    ] == [
        6,
        15,
        30,
    ]
    assert (
        request_build(Site(), slurm.model_copy(update={"builds": None}), None)["slurm_extra"]
        == "--gpus-per-node=4 --exclusive"
    )


SINFO = """ci*|up|1:00:00|1-infinite|2|4|6000|gpu:2|gpu
wide|up|1-00:00:00|1-64|60|256|512000|gpu:a100:4(S:0-3)|gpu,hbm40g
wide|up|1-00:00:00|1-64|4|256|512000|gpu:a100:4(S:0-3)|gpu,hbm80g
"""


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"slurm_partition": "ci", "runtime": 60, "nodes": 2, "tasks_per_node": 4}, None),
        ({"runtime": 600, "nodes": 64, "tasks_per_node": 4, "cpus_per_task": 64}, None),
        ({"slurm_partition": "wide", "nodes": 4, "constraint": "gpu&hbm80g"}, None),
        ({"slurm_partition": "batch"}, "batch.* ci, wide"),
        ({"slurm_partition": "ci", "runtime": 61}, "ci.*60 minutes.* 61"),
        ({"slurm_partition": "ci", "nodes": 1, "tasks": 1, "cpus_per_task": 32}, "0 nodes.* 32 "),
        ({"slurm_partition": "ci", "mem_mb": 6001}, "6001 MB"),
        ({"slurm_partition": "ci", "slurm_extra": "--gpus-per-node=4"}, "4 GPUs"),
        ({"slurm_partition": "wide", "nodes": 5, "constraint": "gpu&hbm80g"}, "4 nodes.*hbm80g"),
        ({"nodes": 65}, "wide.* 64 nodes"),
    ],
)
def test_a_job_is_held_against_the_partitions(asked: dict[str, Any], reason: str | None) -> None:
    found = explain_refusal(asked, parse_partitions(SINFO))
    assert found is None if reason is None else re.search(reason, found or "")
    assert explain_refusal(asked, {}) is None, "a cluster that tells nothing forbids nothing"


def profile() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(
        (ROOT / "workflows" / "profiles" / "slurm" / "config.yaml").read_text()
    )
    return loaded


def test_d2_and_d3_the_state_of_jobs_is_asked_of_squeue() -> None:
    """sacct says "CANCELLED by 0", which the executor takes for running; without accounting it says nothing at all."""
    assert profile()["slurm-status-command"] == "squeue"


def test_d4_there_are_no_arrays() -> None:
    assert not [key for key in profile() if "array" in key]


def test_d5_jobs_have_the_account_of_the_site_or_none() -> None:
    """The plugin would guess one, by a command that does not work."""
    executor = object.__new__(SteadyExecutor)
    assert [*executor.get_account_arg(SimpleNamespace(resources={}))] == [""]
    assert request_place(Site(account="m1234"), None)["slurm_account"] == "m1234"
    assert "slurm_account" not in request_place(Site(), None)


def test_preempted_jobs_are_started_again() -> None:
    """For one that is not, the executor waits for ever."""
    assert profile()["slurm-requeue"] is True
    assert "slurm-no-requeue" not in profile()


def test_site_settings_override_the_card(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "machines").symlink_to(ROOT / "config" / "machines")
    assert load_site(tmp_path) == Site()
    (tmp_path / "config" / "site.yaml").write_text("account: m1\nqos: debug\nminutes: 5\n")
    site = load_site(tmp_path)
    slurm = load_slurm(tmp_path, "perlmutter", site)
    assert slurm
    assert (slurm.qos, slurm.minutes, slurm.constraint) == ("debug", 5, "gpu&hbm40g")
    assert request_place(site, slurm) == {"slurm_account": "m1", "qos": "debug", "constraint": "gpu&hbm40g"}


def test_output_that_is_not_text_is_read(tmp_path: Path) -> None:
    """The folder or the name of any job of the user may have bytes of another encoding."""
    command = tmp_path / "squeue"
    command.write_text("#!/bin/sh\nprintf '7|M\\374ller|/home/ann/\\377\\n'\n")
    command.chmod(0o755)
    answer = resources.ask_slurm(str(command))
    assert answer is not None and answer.startswith("7|M") and parse_partitions(answer) is not None


AWAY = """#!/bin/sh
echo x >> {folder}/asked
[ $(wc -l < {folder}/asked) -ge 3 ] && echo 7 && exit
echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2
exit 1
"""
"""A command that reaches no controller twice, and then does."""


def test_a_controller_that_is_away_is_waited_for_which_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = tmp_path / "squeue"
    command.write_text(AWAY.format(folder=tmp_path))
    command.chmod(0o755)
    monkeypatch.setattr(resources, "RETRY_SECONDS", 0.0)
    assert resources.ask_slurm(str(command)) is None and capsys.readouterr().err == ""
    assert resources.ask_slurm(str(command), outage=600) == "7"
    said = capsys.readouterr().err
    assert str(command) in said and "10 minutes" in said and said.count("\n") == 1
