# Shared by the rules: the runs of the experiment, the resources of their jobs, and messages. This file has no rules.

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from snakemake.exceptions import WorkflowError

import harness
from harness.documents import read_yaml
from harness.errors import UserError
from harness.slurm.jobs import Jobs, orphans
from harness.slurm.resources import NAMES
from harness.slurm.site import load_site
from harness.spec.dataset import COMPUTED
from harness.validation import clipped

PLAN_SCHEMA = 2
POLL_SECONDS = 10

# Snakemake may be started by its path, from an environment that is not active: `harness` is beside it.
os.environ |= {"PATH": os.pathsep.join([*os.get_exec_path(), str(Path(sys.executable).parent)])}


wildcard_constraints:
    run_id="[0-9a-f]{16}",
    batch="[0-9a-f]{16}",
    dataset="[^:/]+",
    permutation="none|single|double",
    partition="|".join(["block", *COMPUTED, r"file:\w[\w.-]*"]),
    parts="[0-9]+",
    seed="[0-9]+",
    step="order|scatter|settle|features",
    number="[0-9]+",
    jobs="[0-9]+",


def check(data, schema, where):
    """Stop with one line if `data` does not match the schema."""
    rules = yaml.safe_load(Path(workflow.basedir, "schemas", schema).read_text())
    fault = best_match(Draft202012Validator(rules).iter_errors(data))
    if fault is None:
        return
    place = ", ".join([where, *map(str, fault.path)])
    accepted = ", ".join(fault.schema.get("properties", {}))
    raise WorkflowError(
        f"{place}: {clipped(fault.message, 300)}." + (f" Accepted keys: {accepted}." if accepted else "")
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


def write_plan(path, file, options):
    """Expand an experiment into its runs. `harness` replaces the file whole, so jobs can read it at any time."""
    command = ["harness", "plan", "--experiment", path, "--out", file, *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise WorkflowError("the command `harness` is not on the PATH. `make setup` installs it.")
    if done.returncode != 0:
        raise WorkflowError(f"`{' '.join(command)}` ended with {done.returncode}: {done.stderr.strip()}")


def read_plan(path, file, options):
    """The runs of an experiment, by run id, expanded once; later and nested calls read the plan file."""
    if not Path(file).is_file():
        write_plan(path, file, options)
    plan = json.loads(Path(file).read_text())
    if plan["schema"] != PLAN_SCHEMA:
        raise WorkflowError(
            f"{file} has schema {plan['schema']}, not {PLAN_SCHEMA}. Delete it and try again."
        )
    if workflow.output_settings.dryrun:
        print(f"{plan['experiment']}: {plan['cost']}", file=sys.stderr)
    return {run["run_id"]: run for run in plan["runs"]}


def label(wildcards):
    first, *others = JOBS.batches[wildcards.batch]
    return RUNS[first]["label"] + (f" and {len(others)} more" if others else "")


def spec_file(run_id):
    return Path(f"results/specs/{run_id}.json")


def write_specs(runs):
    """Write the spec of every run. The name of a spec stands for its content, so a written one never changes."""
    for run_id, run in runs.items():
        file = spec_file(run_id)
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            unfinished = file.with_suffix(f".{os.getpid()}")
            unfinished.write_text(json.dumps(run["spec"]) + "\n")
            unfinished.replace(file)


def spec_files(wildcards):
    return [str(spec_file(run_id)) for run_id in JOBS.batches[wildcards.batch]]


def dataset_markers(wildcards):
    """The markers of the graphs that a batch needs. Markers lie beside the stores and are deleted with their folder."""
    choices = [RUNS[run_id]["spec"]["dataset"] for run_id in JOBS.batches[wildcards.batch]]
    markers = [f"{STORES}/.built/{ORDERED}".format(dataset=choice["name"], **choice) for choice in choices]
    return list(dict.fromkeys(markers))


def asked_by_runs():
    """The resources of a job of runs, computed at each submission of the job."""

    def asked(name):
        return lambda wildcards, attempt: JOBS.run(wildcards.batch, attempt)[name]

    return {**JOBS.place(), **{name: asked(name) for name in NAMES}}


def card(wildcards):
    """The card of a dataset; for a twin, NAME@SCALE, the card of the graph."""
    return f"datasets/catalog/{wildcards.dataset.partition('@')[0]}.yaml"


def brought_partition(wildcards):
    """The partition file of the user. A changed file gives another store."""
    kind, _, name = wildcards.partition.partition(":")
    return [f"{os.environ.get('HARNESS_DATASETS', 'datasets')}/partitions/{name}"] if kind == "file" else []


def order_options(wildcards):
    """The options of `harness data build` for the order: every key but the name."""
    keys = ("permutation", "seed", "partition", "parts")
    return " ".join(f"--{key} {wildcards[key]}" for key in keys)


def wait_for_orphans():
    """Wait for the jobs of a Snakemake that was killed in this folder: their finished runs need not run again."""
    while jobs := orphans(Path.cwd()):
        ids = " ".join(jobs)
        print(f"Waiting for jobs of an earlier Snakemake here; `scancel {ids}` ends them.", file=sys.stderr)
        time.sleep(POLL_SECONDS)


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


config.setdefault("experiment", "workflows/experiments/smoke.yaml")
config.setdefault("scale", "laptop")
config.setdefault("build_jobs", 1)
check(config, "config.schema.yaml", "config")

try:
    SITE = load_site(Path.cwd())
except UserError as refusal:
    raise WorkflowError(str(refusal))
EXPERIMENT = read_experiment(config["experiment"])
OPTIONS = [f"--scale={config['scale']}"] if config["scale"] != "laptop" else []
if machine := config.get("machine", SITE.machine):
    OPTIONS.append(f"--machine={machine}")
PLAN = plan_file(config["experiment"], EXPERIMENT, OPTIONS)
RUNS = read_plan(config["experiment"], PLAN, OPTIONS)
write_specs(RUNS)
JOBS = Jobs(Path.cwd(), RUNS, SITE, Path("results/runs"))
STORES = os.environ.get("HARNESS_DATASETS", "datasets/store")
ORDERED = "{dataset}-{permutation}-s{seed}-{partition}-{parts}"
# The figures: each has a caption beside the code that draws it, in the installed package.
CAPTIONS = {
    path.stem: path for path in sorted(Path(harness.__path__[0], "figures", "captions").glob("*.rst"))
}
TABLES = ["runs", "epochs", "ledger", "accuracy", "memory", "utilisation"]
