"""The workflow: what it runs, in which order, and what it does not repeat.

`harness` is played by stub_harness.py, so these tests see Snakemake, the rules and the profiles, and no
training. A torch that cannot be imported stands first on the path: the Snakefile must not need one.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml

from tests.processes import wait_until
from tests.python_path import with_python_path

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
DATASETS = ["tiny-sbm", "tiny-rmat", "tiny-lattice"]
LOCAL = ["--profile", "workflows/profiles/local"]
OTHER_MACHINES = ["frontier", "tuolumne", "summit", "cpu-cluster"]


@dataclass(frozen=True)
class Project:
    """A project root with the real workflow and profiles, a stub for `harness`, and the stub's journal."""

    folder: Path

    def environment(self, **extra: str) -> dict[str, str]:
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("HARNESS_", "SNAKEMAKE_"))
        }
        return kept | {
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": with_python_path(self.folder / "poison")["PYTHONPATH"],
            "HOME": str(self.folder / "home"),
            "STUB_JOURNAL": str(self.folder / "journal"),
            **extra,
        }

    def start(self, *words: str, **extra: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "snakemake", *words],
            cwd=self.folder,
            env=self.environment(**extra),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def snakemake(self, *words: str, code: int = 0, **extra: str) -> str:
        process = self.start(*words, **extra)
        output, _ = process.communicate(timeout=240)
        assert process.returncode == code, output
        return output

    def journal(self) -> list[tuple[str, str]]:
        """What the stub was asked for, as event and subject, in order."""
        file = self.folder / "journal"
        entries = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [(entry["event"], entry["subject"]) for entry in entries]

    def subjects(self, event: str) -> list[str]:
        return [subject for happened, subject in self.journal() if happened == event]


def make_project(folder: Path) -> Project:
    for name in ("workflows", "config/machines"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("workflow", "slurm"):
        (folder / name).symlink_to((ROOT / name).readlink())
    for name in ("bin", "home", "poison", "datasets/catalog"):
        (folder / name).mkdir(parents=True)
    for name in DATASETS:
        (folder / "datasets" / "catalog" / f"{name}.yaml").touch()
    (folder / "poison" / "torch.py").write_text('raise ImportError("the workflow imported torch")\n')
    stub = folder / "bin" / "harness"
    stub.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT}/tests/stub_harness.py "$@"\n')
    stub.chmod(0o755)
    return Project(folder)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path)


LMOD = Path("/usr/share/lmod/lmod/init/bash")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, str]:
    """A project whose smoke experiment has run to its end, and what was printed. Tests only read it."""
    project = make_project(tmp_path_factory.mktemp("finished"))
    return project, project.snakemake(*LOCAL, "all", "verify", STUB_SECONDS="0.05")


def smoke_runs() -> int:
    """The runs of the smoke experiment, counted by hand.

    (1 + 3) x 2 launches on one graph, 3 other arrangements, 5 on mini-batches and 3 with a partition on it, 2 on two
    more graphs, 1 on one of these in two orders.
    """
    return (1 + 3) * 2 + 3 + 5 + 3 + 2 * 2 + 1


def test_every_graph_is_built_and_every_run_made_once(finished: tuple[Project, str]) -> None:
    project, _ = finished
    built = [*DATASETS, "tiny-sbm", "tiny-lattice"]  # the last two with a partition and with an order
    assert sorted(project.subjects("build")) == sorted(built)
    assert sorted(project.subjects("fetch")) == sorted(DATASETS), "each graph once, whatever its orders"
    assert project.subjects("plan") == ["smoke"]
    assert set(Counter(project.subjects("start")).values()) == {1}
    assert len(project.subjects("start")) == smoke_runs()
    assert sorted(project.subjects("start")) == sorted(project.subjects("finish"))


@pytest.mark.slow
def test_published_scale_is_another_plan(project: Project) -> None:
    mine = {"strategy": "serial", "dataset": "tiny-sbm", "ranks": [1, 2]}
    paper = {"strategy": "serial", "dataset": "tiny-rmat", "ranks": [64]}
    experiment = {"name": "both", "runs": [mine], "published": {"machine": "ethernet", "runs": [paper]}}
    (project.folder / "both.yaml").write_text(yaml.safe_dump(experiment))
    words = [*LOCAL, "results/runs.parquet", "--config", "experiment=both.yaml"]
    project.snakemake(*words)
    assert len(project.subjects("start")) == 2
    project.snakemake(*words, "scale=published")
    assert len(project.subjects("start")) == 3
    assert "build" in {event for event, subject in project.journal() if subject == "tiny-rmat"}


PAPERS = {
    "eight": {"reproduces": ["plexus-fig8a", "plexus-fig8b"], "ranks": [1, 2]},
    "ten": {"reproduces": ["plexus-fig10-left"], "ranks": [2, 4]},
    "seven": {"reproduces": ["scalegnn-fig7a"], "ranks": [8]},
}


@pytest.fixture
def papers(project: Project) -> Project:
    """A project with three experiments of two papers. Two of them share a run."""
    experiments = project.folder / "workflows" / "experiments"
    for path in experiments.glob("*-*.yaml"):
        path.unlink()
    for name, of in PAPERS.items():
        runs = [{"strategy": "serial", "dataset": "tiny-sbm", "ranks": of["ranks"]}]
        text = yaml.safe_dump({"name": name, "reproduces": of["reproduces"], "runs": runs})
        (experiments / f"{name}.yaml").write_text(text)
    return project


def test_a_figure_of_a_paper_is_made_by_its_experiments_alone(papers: Project) -> None:
    papers.snakemake("plexus_fig8", *LOCAL)
    assert papers.subjects("plan") == ["eight"]
    assert papers.subjects("claims") == ["plexus-fig8a plexus-fig8b"]
    folder = papers.folder / "results" / "papers" / "laptop" / "eight"
    assert {"runs.parquet", "claims.parquet", "report.html", "figures"} <= {
        path.name for path in folder.iterdir()
    }
    assert "Nothing to be done" in papers.snakemake("plexus_fig8a", *LOCAL, "--dry-run")


@pytest.mark.slow
def test_papers_share_runs_and_a_changed_run_redraws_its_own_figures_alone(papers: Project) -> None:
    papers.snakemake("paper_plexus", *LOCAL)
    assert len(papers.subjects("start")) == len({1, 2, 4})
    assert sorted(papers.subjects("plan")) == ["eight", "ten"]
    output = papers.snakemake("papers", *LOCAL)
    assert papers.subjects("plan")[2:] == ["seven"]
    assert "results/papers/laptop/seven/report.html" in output[output.index("Figures and report:") :]
    seven = next(
        file.stem
        for file in (papers.folder / "results" / "batches").glob("*.json")
        if '"ranks": 8' in file.read_text()
    )
    (papers.folder / "results" / "done" / seven).write_text("again")
    again = papers.snakemake("papers", *LOCAL, "--dry-run")
    assert "drawing seven" in again
    assert "drawing eight" not in again and "drawing ten" not in again


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("plexus_tab1", ["plexus_tab1", "laptop", "plexus-tab1: "]),
        ("plexus-fig8", ["'plexus-fig8'", "plexus_fig8 or "]),
        ("paper-g3", ["cagnet_fig1", "plexus_fig8"]),
    ],
)
def test_wrong_target_is_refused_in_a_line_that_names_others(
    papers: Project, target: str, said: list[str]
) -> None:
    output = papers.snakemake(target, *LOCAL, "--dry-run", code=1)
    assert all(word in output for word in said)
    assert 'File "' not in output and "Traceback" not in output


@pytest.mark.slow
def test_a_partition_is_built_as_it_was_asked_for(project: Project) -> None:
    """The file that a user brings is an input: without it nothing runs, and a new one is built."""
    orders = [{"partition": "metis", "parts": 2, "seed": 3}, {"partition": "file:my.part-2", "parts": 2}]
    runs = [{"strategy": "serial", "dataset": [{"name": "tiny-sbm", **order} for order in orders]}]
    (project.folder / "parts.yaml").write_text(yaml.safe_dump({"name": "parts", "runs": runs}))
    words = [*LOCAL, "results/runs.parquet", "--config", "experiment=parts.yaml"]
    assert "datasets/partitions/my.part-2" in project.snakemake(*words, code=1)
    assert project.subjects("build") == []
    brought = project.folder / "datasets" / "partitions" / "my.part-2"
    brought.parent.mkdir()
    brought.touch()
    project.snakemake(*words)
    built = ["none 3 metis 2", "none 0 file:my.part-2 2"]
    assert sorted(project.subjects("order")) == sorted(built)
    brought.write_text("0\n")
    project.snakemake(*words)
    assert project.subjects("order")[2:] == built[1:]


@pytest.mark.slow
def test_a_build_is_shared_by_as_many_jobs_as_are_asked_for(project: Project) -> None:
    """Step by step, and each is ended by an ordinary build; a graph that is not named is built by one."""
    dataset = [{"name": "tiny-sbm", "partition": "metis", "parts": 2}, "tiny-rmat"]
    runs = [{"strategy": "serial", "dataset": dataset}]
    (project.folder / "large.yaml").write_text(yaml.safe_dump({"name": "large", "runs": runs}))
    words = [*LOCAL, "results/runs.parquet", "--config", "experiment=large.yaml"]
    project.snakemake(*words, "build_jobs={tiny-sbm: 2}")
    told = [
        subject for event, subject in project.journal() if subject.startswith("tiny-sbm") and event != "fetch"
    ]
    steps = {
        step: [f"tiny-sbm {step}:{number}/2" for number in (0, 1)]
        for step in ("scatter", "settle", "features")
    }
    assert told[0] == "tiny-sbm order:0/2"
    assert [sorted(told[start : start + 2]) for start in (1, 3, 5)] == list(steps.values())
    assert told[7:] == ["tiny-sbm"]
    assert len(project.subjects("share")) == 7
    assert "Nothing to be done" in project.snakemake(*words, "build_jobs={tiny-sbm: 2}", "--dry-run")
    assert "Nothing to be done" in project.snakemake(*words, "--dry-run")
    assert "build_jobs = 0" in project.snakemake(*words, "build_jobs=0", code=1)


def test_timed_run_is_exclusive(finished: tuple[Project, str]) -> None:
    project, _ = finished
    running: list[str] = []
    building = 0
    for event, subject in project.journal():
        if event in ("start", "build"):
            assert not running, f"{event} of {subject} beside the run {running}"
        if event == "start":
            assert not building, f"the run {subject} beside {building} builds"
            running.append(subject)
        elif event == "finish":
            running.remove(subject)
        elif event in ("build", "order"):  # the end of a build is an order
            building += 1 if event == "build" else -1


def test_no_rule_works_beside_a_timed_run() -> None:
    for path in sorted((ROOT / "workflows" / "rules").glob("*.smk")):
        for rule in re.split(r"(?m)^rule ", path.read_text())[1:]:
            assert "shell:" not in rule or "machine_percent=" in rule, f"{path.name}: {rule.splitlines()[0]}"


@pytest.mark.slow
def test_the_scheduler_rests_while_a_run_is_timed(project: Project) -> None:
    """It looks at the jobs when one has ended, and not in every second for each that has."""
    said = project.snakemake(*LOCAL, "--verbose", STUB_SECONDS="0.5")
    assert said.count("Ready jobs:") <= 2 * said.count("Finished jobid:")


def test_partitions_with_several_seeds_are_cut_side_by_side(project: Project) -> None:
    orders = [{"partition": "metis", "parts": 2, "seed": seed} for seed in (0, 1)]
    runs = [{"strategy": "serial", "dataset": [{"name": "tiny-sbm", **order} for order in orders]}]
    (project.folder / "seeds.yaml").write_text(yaml.safe_dump({"name": "seeds", "runs": runs}))
    words = ["results/runs.parquet", "--config", "experiment=seeds.yaml"]
    project.snakemake("--profile", "workflows/profiles/ci", *words, STUB_TOGETHER="2")
    assert sorted(project.subjects("order")) == ["none 0 metis 2", "none 1 metis 2"]


def test_the_end_names_the_figures_and_the_report(finished: tuple[Project, str]) -> None:
    project, output = finished
    ending = output[output.index("Figures and report:") :]
    named = re.findall(r"^  (\S+)$", ending, flags=re.MULTILINE)
    assert [Path(name).name for name in named] == ["received.svg", "strong-scaling.svg", "report.html"]
    assert all((project.folder / name).is_file() for name in named)


def test_a_rerun_does_nothing(finished: tuple[Project, str]) -> None:
    project, _ = finished
    assert "Nothing to be done" in project.snakemake(*LOCAL, "--dry-run")


def test_an_edited_shell_line_repeats_no_run(finished: tuple[Project, str], tmp_path: Path) -> None:
    project, _ = finished
    copy = Project(tmp_path / "copy")
    shutil.copytree(project.folder, copy.folder, symlinks=True)
    rules = copy.folder / "workflows" / "rules" / "run.smk"
    line = rules.read_text()
    assert "harness run --spec" in line
    rules.write_text(line.replace("harness run --spec", "harness  run  --spec"))
    assert "Nothing to be done" in copy.snakemake(*LOCAL, "--dry-run")


def test_the_report_of_snakemake_holds_every_caption(finished: tuple[Project, str]) -> None:
    project, _ = finished
    project.snakemake("--report", "report.zip")
    with ZipFile(project.folder / "report.zip") as report:
        pages = "".join(report.read(name).decode(errors="replace") for name in report.namelist())
    for name in ("received", "strong-scaling", "strong-scaling-tiny-sbm"):
        assert f"How to read {name}." in pages
    assert "Shown: " not in pages, "names of graphs are not markup"


def test_run_folders_are_no_outputs(finished: tuple[Project, str]) -> None:
    """Snakemake deletes outputs. What it may delete are markers, specs, tables, figures and the report."""
    project, _ = finished
    outputs = project.snakemake("--summary").splitlines()
    assert not [line for line in outputs if line.startswith("results/runs/")]


@pytest.mark.slow
def test_a_killed_workflow_is_resumed_without_losing_or_repeating(project: Project) -> None:
    process = project.start(*LOCAL, STUB_SECONDS="0.2")
    wait_until(lambda: len(project.subjects("finish")) >= 2 and len(project.subjects("start")) >= 3)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    survived = project.subjects("finish")
    assert 2 <= len(survived) < smoke_runs()

    assert "locked" in project.snakemake(*LOCAL, code=1)
    project.snakemake("--unlock")
    project.snakemake(*LOCAL)
    starts = Counter(project.subjects("start"))
    assert all(starts[run] == 1 for run in survived)
    assert len(project.subjects("finish")) == len(set(project.subjects("finish"))) == smoke_runs()
    assert "Nothing to be done" in project.snakemake(*LOCAL, "--dry-run")


@pytest.mark.slow
def test_a_run_without_a_record_stops_the_results_and_is_named(project: Project) -> None:
    output = project.snakemake(*LOCAL, "--retries", "1", code=1, STUB_BROKEN="serial")
    log = re.findall(r"First failure: (\S+)", output)[0]
    assert (project.folder / log).read_text().count("no record could be written") == 2, "one for each attempt"
    assert not (project.folder / "results" / "runs.parquet").exists()
    parallel_runs = 3 * 2 + 3 + 5 + 3 + 1 + 2
    assert len(project.subjects("finish")) == parallel_runs, "the other runs go on"


@pytest.mark.slow
def test_a_recorded_failure_is_a_result_until_verify_is_asked_and_can_be_tried_again(
    project: Project,
) -> None:
    project.snakemake(*LOCAL, STUB_FAILED="serial")
    assert (project.folder / "results" / "report.html").exists()
    assert "results/logs/verify.log" in project.snakemake("verify", *LOCAL, code=1)

    project.snakemake("all", "verify", *LOCAL, "--forcerun", "run")
    starts = Counter(project.subjects("start"))
    serial_runs = 2 + 2
    assert sorted(starts.values()) == [1] * (smoke_runs() - serial_runs) + [2] * serial_runs


@pytest.mark.parametrize(
    "words",
    [
        ["--profile", "slurm"],
        *(
            pytest.param(words, marks=pytest.mark.slow)
            for words in (
                ["--profile", "workflows/profiles/slurm"],
                ["--profile", "workflows/profiles/slurm/config.yaml"],
                ["--workflow-profile", "slurm"],
                ["--workflow-profile", "workflows/profiles/slurm"],
            )
        ),
    ],
)
def test_every_spelling_of_the_slurm_profile_dry_runs(project: Project, words: list[str]) -> None:
    """In an empty home, without Slurm, without a word about the site."""
    output = project.snakemake(*words, "--dry-run")
    assert re.search(r"^run +\d+$", output, flags=re.MULTILINE)
    assert len(list((project.folder / "results" / "specs").iterdir())) == smoke_runs()


@pytest.mark.parametrize(
    "machine",
    ["perlmutter", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHER_MACHINES)],
)
def test_one_setting_chooses_the_machine_and_small_runs_share_jobs(project: Project, machine: str) -> None:
    (project.folder / "config" / "site.yaml").write_text(f"machine: {machine}\naccount: m1234\n")
    output = project.snakemake("--profile", "slurm", "--dry-run")
    jobs = re.search(r"^run +(\d+)$", output, flags=re.MULTILINE)
    assert jobs and 3 <= int(jobs[1]) < smoke_runs() / 2
    assert "smoke: 3 node-hours predicted" in output, "the cost that `harness plan` tells"
    (plan,) = (project.folder / "results" / "plans").glob(f"smoke-machine={machine}-*.json")
    machines = {run["spec"]["machine"]["name"] for run in json.loads(plan.read_text())["runs"]}
    assert machines == {machine}


def test_a_wrong_site_is_refused_in_a_line(project: Project) -> None:
    (project.folder / "config" / "site.yaml").write_text("acount: m1234\n")
    output = project.snakemake("--profile", "slurm", "--dry-run", code=1)
    assert re.search(r"config/site\.yaml: acount.*machine, account", output)


@pytest.mark.slow
def test_a_second_snakemake_in_the_folder_is_refused_and_disturbs_nothing(project: Project) -> None:
    process = project.start(*LOCAL, STUB_SECONDS="0.5")
    wait_until(lambda: len(project.subjects("start")) >= 1)
    assert "locked" in project.snakemake(*LOCAL, code=1)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    assert set(Counter(project.subjects("start")).values()) == {1}


def test_the_default_profile_leaves_the_site_its_own() -> None:
    """Its keys win over those of the profile that the user names."""
    default = yaml.safe_load((ROOT / "workflows" / "profiles" / "default" / "config.yaml").read_text())
    assert not default.keys() & {"executor", "cores", "jobs", "default-resources", "resources", "retries"}


def test_the_linter_finds_nothing(project: Project) -> None:
    assert "Congratulations" in project.snakemake("--lint")


def test_the_workflow_is_used_from_elsewhere_and_as_a_module(project: Project, tmp_path: Path) -> None:
    """By `-s` and `--directory`, and by a Snakefile of the user's own, with an experiment of the user's own."""
    count = smoke_runs()
    words = ["-s", str(ROOT / "workflows" / "Snakefile"), "--directory", str(project.folder), "--dry-run"]
    assert re.search(
        r"^run +\d+$", project.snakemake(*words, "--workflow-profile", "none"), flags=re.MULTILINE
    )
    own = project.folder / "own.smk"
    own.write_text(
        f"""
from harness.runtime.slurm.executor import prepare_workflow

module harness_runs:
    snakefile: "{ROOT / "workflows" / "Snakefile"}"
    config: {{"experiment": "workflows/experiments/smoke.yaml"}}

use rule * from harness_runs as harness_*

onstart:
    prepare_workflow(workflow)

rule mine:
    default_target: True
    input: rules.harness_all.input
    output: "mine"
    shell: "touch {{output}}"
"""
    )
    output = project.snakemake("-s", str(own), "--dry-run")
    assert re.search(r"^harness_run +\d+$", output, flags=re.MULTILINE) and re.search(
        r"^mine +1$", output, re.M
    )
    assert len(list((project.folder / "results" / "specs").iterdir())) == count


@pytest.mark.slow
@pytest.mark.skipif(not LMOD.exists(), reason="Lmod is not installed")
def test_jobs_load_environment_modules(project: Project, tmp_path: Path) -> None:
    """By Debian's Lmod, whose initialisation tells later shells of the function `module`."""
    (tmp_path / "modules" / "proof").mkdir(parents=True)
    loaded = tmp_path / "loaded"
    (tmp_path / "modules" / "proof" / "1.0.lua").write_text(
        f'execute{{cmd="touch {loaded}", modeA={{"load"}}}}'
    )
    mine = {"name": "mine", "runs": [{"strategy": "serial", "dataset": "tiny-sbm", "ranks": 1}]}
    (project.folder / "mine.yaml").write_text(yaml.safe_dump(mine))
    words = [*LOCAL, "results/runs.parquet", "--software-deployment-method", "env-modules"]
    told = {"BASH_ENV": str(LMOD), "MODULEPATH": str(tmp_path / "modules")}
    project.snakemake(*words, "--config", "experiment=mine.yaml", 'modules=["proof/1.0"]', **told)
    assert loaded.exists() and len(project.subjects("finish")) == 1


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("experimnt=x.yaml", r"config: experimnt.* experiment\b"),
        ("experiment=none.yaml", r"none\.yaml.*workflows/experiments/cagnet-figure-1"),
        ("experiment=empty.yaml", r"empty\.yaml"),
        ("experiment=typo.yaml", r"typo\.yaml: runs\.0\.rank\b.* ranks\b"),
    ],
)
def test_a_wrong_request_is_refused_in_a_line(project: Project, config: str, message: str) -> None:
    (project.folder / "empty.yaml").touch()
    typo = {"name": "typo", "runs": [{"strategy": "serial", "dataset": "tiny-sbm", "rank": 1}]}
    (project.folder / "typo.yaml").write_text(yaml.safe_dump(typo))
    assert re.search(message, project.snakemake("--dry-run", "--config", config, code=1))
    assert not (project.folder / "results").exists()
