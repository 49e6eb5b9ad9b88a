# Shared by the rules: the configuration, the studies, and the wildcards. The functions are in harness/experiment/workflow.

import functools
from pathlib import Path

from harness.experiment.paper_figures import list_paper_figures
from harness.results import schema
from harness.runtime.slurm.executor import install_executor, prepare_workflow
from harness.runtime.slurm.resources import JOB_KEYS, load_site, load_slurm, request_build, request_place
from harness.spec.dataset import COMPUTED
from harness.spec.machine_card import list_machines
from harness.base.validation import validate
from harness.experiment.workflow.graph_build import ORDER, GraphBuild, find_card, stores_folder
from harness.experiment.workflow.hooks import (
    add_harness_to_path,
    check_before_planning,
    check_before_unlocking,
    list_main_figures,
    print_first_failure,
    print_results,
    quote_option,
    read_captions,
)
from harness.experiment.workflow.paper_targets import PaperTargets, experiment_file
from harness.experiment.workflow.studies import RunBatch, Studies, read_experiment
from harness.experiment.workflow.workflow_config import WorkflowConfig

add_harness_to_path()
install_executor()

CONFIG = validate(WorkflowConfig, config, "config")
config.update(CONFIG.model_dump(mode="json", exclude_none=True))  # Snakemake's report shows the defaults too
SITE = load_site(Path.cwd())
MACHINE = SITE.machine if CONFIG.machine is None else CONFIG.machine
STUDIES = Studies(SITE, CONFIG.scale, MACHINE, print_costs=workflow.output_settings.dryrun)
# The Snakemake of a job does not read the experiment, which may have been edited or deleted since the submission.
IS_MAIN = workflow.is_main_process
NAME = read_experiment(CONFIG.experiment).name if IS_MAIN else "of-no-job"
TARGETS = PaperTargets(list_paper_figures(Path.cwd()) if IS_MAIN else [], STUDIES, CONFIG.scale)

# Folders, and the files in them.
STORES = stores_folder()
DRAWN = f"figures/{NAME}"
TABLES = [
    name for name in schema.TABLES if name != "tape"
]  # `collect` writes the tape too, but no rule reads it
# Snakemake removes the log of a job before each attempt. A second hard link keeps the file, so that the next attempt
# appends to it. Without hard links only the log of the last attempt is kept.
APPENDING = "touch {log:q}.attempts; ln -f {log:q}.attempts {log:q} 2> /dev/null || true; "

# The keys of a job's resources: the keys that every job has, and the keys that a machine card or the site sets.
CARDS = [load_slurm(Path.cwd(), name, SITE) for name in ([MACHINE] if MACHINE else list_machines(Path.cwd()))]
RESOURCES = sorted(
    {*JOB_KEYS}.union(*({**request_place(SITE, card), **request_build(SITE, card, None)} for card in CARDS))
)


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


@functools.cache
def find_batch(name):
    return RunBatch(name, SITE)


def batch_of(wildcards):
    return find_batch(wildcards.batch)


def build_of(wildcards):
    return GraphBuild.from_wildcards(wildcards)


def count_build_jobs(wildcards):
    """Return the number of jobs of a build. A finished build keeps its number, so that it is not built again."""
    return build_of(wildcards).count_past_jobs() or CONFIG.count_build_jobs(wildcards.dataset)


def run_resources():
    """Return the resources of a job of runs, computed at each submission."""

    def resource(key):
        return lambda wildcards, attempt: batch_of(wildcards).resources(attempt).get(key)

    return {key: resource(key) for key in RESOURCES}


def build_resources():
    """Return the resources of a job that builds a graph."""

    def resource(key):
        return lambda wildcards: STUDIES.request_build(wildcards.dataset).get(key)

    return {key: resource(key) for key in RESOURCES}
