# Shared by the rules: the runs of the experiment, the resources of their jobs, and messages. This file has no rules.

import functools
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from snakemake.exceptions import WorkflowError

import harness
from harness.documents import read_yaml
from harness.errors import UserError
from harness.experiment.paper_figures import list_paper_figures
from harness.slurm.executor import batch_line, install, prepare
from harness.slurm.jobs import Ended, Jobs, bill_text
from harness.slurm.resources import NAMES, PARTITIONS, ask, build, load_site, partitions_of, place, slurm_of
from harness.spec.dataset import COMPUTED
from harness.spec.root import imported_folder
from harness.validation import clip_line

PLAN_SCHEMA = 2
# By their sources, which are elsewhere where the workflow is used as a module.
SCHEMAS = {
    "config.schema.yaml": workflow.source_path("../schemas/config.schema.yaml"),
    "experiments.schema.yaml": workflow.source_path("../schemas/experiments.schema.yaml"),
}
# Snakemake removes a job's log before each attempt, which removes one name of a file: under the other it is kept, and the
# next attempt appends to it. A file system without hard links keeps the last attempt alone.
APPENDING = "touch {log:q}.attempts; ln -f {log:q}.attempts {log:q} 2> /dev/null || true; "

# Snakemake may be started by its path, from an environment that is not active: `harness` is beside it.
os.environ |= {"PATH": os.pathsep.join([*os.get_exec_path(), str(Path(sys.executable).parent)])}

# In place of the plugin's own executor, where Snakemake submits to Slurm.
install()


wildcard_constraints:
    run_id="[0-9a-f]{16}",
    batch="[0-9a-f]{16}",
    dataset=r"\w[\w.-]*(@[0-9w-]+)?",
    permutation="none|single|double",
    partition="|".join(["block", *COMPUTED, r"file:\w[\w.-]*"]),
    parts="[0-9]+",
    seed="[0-9]+",
    step="order|scatter|settle|features",
    number="[0-9]+",
    jobs="[0-9]+",


def check(data, schema, where):
    """Stop with one line if `data` does not match the schema."""
    rules = yaml.safe_load(Path(SCHEMAS[schema]).read_text())
    fault = best_match(Draft202012Validator(rules).iter_errors(data))
    if fault is None:
        return
    place = ", ".join([where, *map(str, fault.path)])
    accepted = ", ".join(fault.schema.get("properties", {}))
    raise WorkflowError(
        f"{place}: {clip_line(fault.message, 300)}." + (f" Accepted keys: {accepted}." if accepted else "")
    )


def read_experiment(path):
    """The experiment in a file, checked against the schema; `harness plan` checks its meaning."""
    if not Path(path).is_file():
        known = ", ".join(map(str, sorted(Path("workflows/experiments").glob("*.yaml")))) or "none"
        raise WorkflowError(
            f"{path}: no such file. Experiments: {known}. Run Snakemake from the project root."
        )
    try:
        experiment = read_yaml(Path(path), path)
    except UserError as refusal:
        raise WorkflowError(str(refusal))
    check(experiment, "experiments.schema.yaml", path)
    return experiment


def plan_file(path, experiment, options):
    """The plan file of this experiment. A changed experiment or machine card has another plan file."""
    sources = [Path(path), *sorted(Path("config/machines").glob("*.yaml"))]
    key = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    words = [experiment["name"], *(option.strip("-") for option in options)]
    return f"results/plans/{'-'.join(words)}-{key}.json"


def write_plans(files, options):
    """Expand experiments into their runs; `files` has the plan file of each. `harness` replaces a file whole."""
    command = ["harness", "plan", "--experiment", *files, "--out", *files.values(), *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise WorkflowError("the command `harness` is not on the PATH. `make setup` installs it.")
    if done.returncode != 0:
        raise WorkflowError(f"`{' '.join(command)}` ended with {done.returncode}: {done.stderr.strip()}")


def read_plan(file):
    """The name of a plan, its cost in words, and its runs by run id."""
    plan = json.loads(Path(file).read_text())
    if plan["schema"] != PLAN_SCHEMA:
        raise WorkflowError(
            f"{file} has schema {plan['schema']}, not {PLAN_SCHEMA}. Delete it and try again."
        )
    return plan["experiment"], plan["cost"], {run["run_id"]: run for run in plan["runs"]}


class Study(NamedTuple):
    """An experiment at the scale that was asked for."""

    plan: str
    """The file that lists its runs."""
    jobs: Jobs


def options_of(scale):
    """The options of a plan at a scale."""
    return [*([f"--scale={scale}"] if scale != "laptop" else []), *ON_MACHINE]


def study(path, scale=None):
    """The study of an experiment's file, planned when a rule first asks for it; without a scale, at that of the config."""
    return study_at(path, scale or config["scale"])


@functools.cache
def study_at(path, scale):
    options = options_of(scale)
    plan = plan_file(path, read_experiment(path), options)
    if not Path(plan).is_file():
        write_plans({path: plan}, options)
    name, cost, runs = read_plan(plan)
    jobs = Jobs(Path.cwd(), runs, SITE, RECORDS, ended())
    for run_id, run in runs.items():
        write_once(spec_file(run_id), run["spec"])
    for batch, members in jobs.batches.items():
        write_once(batch_file(batch), {run_id: runs[run_id] for run_id in members})
    if workflow.output_settings.dryrun:
        print(f"{name}: {cost}\n{bill(jobs)}", file=sys.stderr)
    PLANNED.append(jobs)
    return Study(plan, jobs)


def bill(jobs):
    """The jobs that are left of a plan: their nodes, minutes and sbatch lines."""
    left = [batch for batch in jobs.batches if not Path(f"results/done/{batch}").exists()]
    return bill_text([jobs.cost(batch) for batch in left], partitions_of(ask(*PARTITIONS) or ""), batch_line)


def ended():
    """The jobs that have their markers. A marker without a list of runs, which a user deleted, tells nothing."""
    names = frozenset(path.name for path in Path("results/done").glob("*") if batch_file(path.name).exists())
    return Ended(names, runs_of)


def plan_together(paths, scale):
    """Expand those of several experiments that have no plan yet, in one process."""
    options = options_of(scale)
    files = {path: plan_file(path, read_experiment(path), options) for path in paths}
    if missing := {path: file for path, file in files.items() if not Path(file).is_file()}:
        write_plans(missing, options)


def markers_of(path, scale=None):
    """The markers of all jobs of an experiment."""
    return [f"results/done/{batch}" for batch in study(path, scale).jobs.batches]


def write_once(file, content):
    """Write a document whose name stands for its content: one that is written never changes."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps(content) + "\n")
        unfinished.replace(file)


def spec_file(run_id):
    return Path(f"results/specs/{run_id}.json")


def batch_file(batch):
    return Path(f"results/batches/{batch}.json")


@functools.cache
def runs_of(batch):
    """The runs of a job, by run id. A job reads this file alone, and no plan."""
    return json.loads(batch_file(batch).read_text())


@functools.cache
def jobs_of(batch):
    """The jobs object of one job. It has what was written at its submission, not what has become of the plan."""
    return Jobs(Path.cwd(), runs_of(batch), SITE, RECORDS)


def label(wildcards):
    first, *others = runs_of(wildcards.batch).values()
    return first["label"] + (f" and {len(others)} more" if others else "")


def spec_files(wildcards):
    return [str(spec_file(run_id)) for run_id in runs_of(wildcards.batch)]


def dataset_markers(wildcards):
    """The markers of the graphs that a batch needs. Markers lie beside the stores and are deleted with their folder."""
    choices = [run["spec"]["dataset"] for run in runs_of(wildcards.batch).values()]
    markers = [f"{STORES}/.built/{ORDERED}".format(dataset=choice["name"], **choice) for choice in choices]
    return list(dict.fromkeys(markers))


def asked_by_runs():
    """The resources of a job of runs, computed at each submission of the job."""

    def placed(name):
        return lambda wildcards: jobs_of(wildcards.batch).place().get(name)

    def asked(name):
        return lambda wildcards, attempt: jobs_of(wildcards.batch).run(wildcards.batch, attempt)[name]

    return {**{name: placed(name) for name in PLACE}, **{name: asked(name) for name in NAMES}}


def asked_by_builds():
    """The resources of a job that builds a graph, as the card of the machine names its builds."""

    def asked(name):
        return lambda wildcards: built_by(wildcards.dataset).get(name)

    return {name: asked(name) for name in (*PLACE, *NAMES)}


@functools.cache
def built_by(dataset):
    """The resources of a job that builds a graph."""
    planned = PLANNED[0] if PLANNED else Jobs(Path.cwd(), {}, SITE, RECORDS)
    return planned.build(entries_of(dataset))


def entries_of(dataset):
    """The entries of the adjacency matrix that the card of a graph expects; None if the card tells no number."""
    name, _, scale = dataset.partition("@")
    path = card_of(name)
    try:
        expected = read_yaml(Path(path), path, may_be_empty=True).get("expected", {})
        known = expected.get("nnz_adj") or expected.get("nnz_sym")
        return known and int(known * Fraction(scale.replace("-", "/") or 1))
    except (UserError, AttributeError, TypeError, ValueError):  # the build itself names the fault of its card
        return None


def card(wildcards):
    """The card of a dataset; for a twin, NAME@SCALE, the card of the graph."""
    return card_of(wildcards.dataset.partition("@")[0])


def card_of(name):
    """The card of a graph: that of the project, unless only the data folder has one."""
    own = Path("datasets/catalog", f"{name}.yaml")
    imported = imported_folder(Path.cwd()) / own.name
    return str(imported if imported.exists() and not own.exists() else own)


def brought_partition(wildcards):
    """The partition file of the user. A changed file gives another store."""
    kind, _, name = wildcards.partition.partition(":")
    return [f"{os.environ.get('HARNESS_DATASETS', 'datasets')}/partitions/{name}"] if kind == "file" else []


def order_options(wildcards):
    """The options of `harness data build` for the order, for a shell: every key but the name."""
    keys = ("permutation", "seed", "partition", "parts")
    return " ".join(f"--{key} {shlex.quote(wildcards[key])}" for key in keys)


def steps(wildcards):
    """The steps of a build that several jobs share. A computed partition comes first, in one job."""
    return [
        *(["order"] if wildcards.partition in COMPUTED and wildcards.partition != "random" else []),
        "scatter",
        "settle",
        "features",
    ]


def shares(wildcards, step, jobs):
    """The markers of all jobs of a step."""
    numbers = range(1 if step == "order" else int(jobs))
    return [f"{STORES}/.shares/{ORDERED}/{step}-{number}-of-{jobs}".format(**wildcards) for number in numbers]


def shares_before(wildcards):
    """The markers that a job of a step waits for: all jobs of the step before."""
    before = steps(wildcards)[: steps(wildcards).index(wildcards.step)]
    return shares(wildcards, before[-1], wildcards.jobs) if before else []


def last_shares(wildcards):
    """The markers that the end of a build waits for; none if one job builds the graph alone."""
    return shares(wildcards, steps(wildcards)[-1], jobs) if (jobs := build_jobs(wildcards)) > 1 else []


def build_jobs(wildcards):
    """The number of jobs that build, or built, a graph: another number is no reason to build the graph again."""
    if Path(f"{STORES}/.built/{ORDERED}".format(**wildcards)).exists():
        last = sorted(
            Path(f"{STORES}/.shares/{ORDERED}".format(**wildcards)).glob("features-*"), key=os.path.getmtime
        )
        return int(last[-1].name.rpartition("-")[2]) if last else 1
    asked = config["build_jobs"]
    return int(asked.get(wildcards.dataset, 1) if isinstance(asked, dict) else asked)


def announce(paths):
    """Print the paths of the results that exist."""
    made = [path for path in paths if Path(path).is_file()]
    if made:
        print("\nFigures and report:", *made, sep="\n  ", file=sys.stderr)


def point_at_first_failure(snakemake_logs):
    """Print the log of the first failed job: later failures often follow from the first."""
    text = "".join(Path(log).read_text() for log in snakemake_logs)
    failed = re.search(r"log: (\S+) \(check log file", text)
    if failed:
        print(f"\nFirst failure: {failed[1]}", file=sys.stderr)


def given(option, values):
    """An option of a command with its values, for a shell; nothing without values."""
    return shlex.join([option, *values]) if values else ""


def experiment_file(name):
    return f"workflows/experiments/{name}.yaml"


def families(figure):
    """The targets that a figure belongs to: its id, its number without the panel, its paper, and all."""
    number = re.sub(r"(-(fig|tab)\d+)[a-z-].*$", r"\1", figure.id)
    names = (figure.id, number, f"paper-{figure.paper}", "papers")
    return dict.fromkeys(name.replace("-", "_") for name in names)


def reports_of(target):
    """The reports of a target. Figures of which nothing is run are left out; a target of such alone is refused."""
    names = list(dict.fromkeys(name for figure in TARGETS[target] for name in figure.experiments))
    if config["scale"] == "published":
        names = [name for name in names if read_experiment(experiment_file(name)).get("published")]
    if not names:
        raise WorkflowError("; ".join(f"{figure.id}: {figure.reproduction}" for figure in TARGETS[target]) + ".")
    plan_together([experiment_file(name) for name in names], config["scale"])
    plan_together([experiment_file(name) for name in names if emulates(name)], "emulated")
    return [f"{PAPERS}/{name}/report.html" for name in names]


def emulates(name):
    """Whether an experiment has emulated runs, which stand beside its runs on one machine."""
    return config["scale"] == "laptop" and "emulated" in read_experiment(experiment_file(name))


def emulations(wildcards):
    return rules.emulated_runs.output if emulates(wildcards.experiment) else []


def paper_reports():
    """The reports of papers at this scale that were made."""
    return sorted(map(str, Path(PAPERS).glob("*/report.html")))


config.setdefault("experiment", "workflows/experiments/smoke.yaml")
config.setdefault("scale", "laptop")
config.setdefault("build_jobs", 1)
config.setdefault("container", "harness.sif")
config.setdefault("modules", [])
check(config, "config.schema.yaml", "config")

try:
    SITE = load_site(Path.cwd())
except UserError as refusal:
    raise WorkflowError(str(refusal))
# A job reads what was written at its submission: its experiment may have been edited since, or be gone.
AT_HOME = workflow.is_main_process
DRAWN = f"figures/{read_experiment(config['experiment'])['name'] if AT_HOME else 'of-no-job'}"
machine = config.get("machine", SITE.machine)
ON_MACHINE = [f"--machine={machine}"] if machine else []
# The machines for which jobs may be asked, and the keys of their place that are set: another key is the profile's.
MACHINES = [machine] if machine else [path.stem for path in Path("config/machines").glob("*.yaml")]
CARDS = [slurm_of(Path.cwd(), name, SITE) for name in MACHINES]
PLACE = sorted(
    {key for card in CARDS for key in {**place(SITE, card), **build(SITE, card, None)} if key not in NAMES}
)
RECORDS = Path("results/runs")
PLANNED = []
STORES = os.environ.get("HARNESS_DATASETS", "datasets/store")
ORDERED = "{dataset}-{permutation}-s{seed}-{partition}-{parts}"
# The figures of the experiment: each has a caption beside the code that draws it, in the installed package.
CAPTIONS = {
    path.stem: path for path in sorted(Path(harness.__path__[0], "figures", "captions").glob("*.rst"))
}
TABLES = ["runs", "epochs", "ledger", "accuracy", "memory", "utilisation"]
# The figures of the papers: the folder of their results at this scale, the figures that an experiment reproduces, and the
# figures of each target.
PAPERS = f"results/papers/{config['scale']}"
FIGURES = list_paper_figures(Path.cwd()) if AT_HOME else []
REPRODUCED = {
    experiment: [figure.id for figure in FIGURES if experiment in figure.experiments]
    for figure in FIGURES
    for experiment in figure.experiments
}
TARGETS = {}
for figure in FIGURES:
    for target in families(figure):
        TARGETS.setdefault(target, []).append(figure)
