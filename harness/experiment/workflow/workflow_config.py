"""The configuration of the workflow: the keys that `snakemake --config` accepts."""

from typing import Any, Literal

from pydantic import Field, field_validator

from harness.base.validation import Frozen


class WorkflowConfig(Frozen):
    """The keys of `snakemake --config`, all optional. Threads, nodes and time limits belong in a profile."""

    experiment: str = Field("workflows/experiments/smoke.yaml", pattern=r"\.ya?ml$")
    """The experiment to run, as a path from the project root."""
    scale: Literal["tiny", "laptop", "published"] = "laptop"
    """The runs of the experiment: tiny ones for a trial, those for one machine, or those of the paper."""
    machine: str | None = None
    """The machine card for runs that do not name one; overrides config/site.yaml. At the scale published, only the
    runs for this machine are planned."""
    build_jobs: int | dict[str, int] = 1
    """The number of jobs that build a graph together: one number, or a mapping from dataset names to numbers. Datasets
    without a number are built by one job."""
    container: str = Field("harness.sif", min_length=1)
    """The image in which rules run with `--software-deployment-method apptainer`."""
    pictures: Literal["all", "svg"] = "all"
    """The pictures of a figure: PDF, PNG and SVG, or SVG alone, which takes less time."""
    modules: tuple[str, ...] = ()
    """The environment modules that jobs load with `--software-deployment-method env-modules`."""

    @field_validator("build_jobs", mode="plain")
    @classmethod
    def _parse_build_jobs(cls, value: Any) -> int | dict[str, int]:
        if isinstance(value, dict):
            return {str(dataset): _parse_job_count(jobs) for dataset, jobs in value.items()}
        return _parse_job_count(value)

    @field_validator("modules")
    @classmethod
    def _check_modules(cls, modules: tuple[str, ...]) -> tuple[str, ...]:
        if "" in modules:
            raise ValueError("a module has a name")
        return modules

    def count_build_jobs(self, dataset: str) -> int:
        """Return the number of jobs that build the graph of a dataset."""
        return self.build_jobs.get(dataset, 1) if isinstance(self.build_jobs, dict) else self.build_jobs


def _parse_job_count(value: Any) -> int:
    """Return a number of jobs. Snakemake passes numbers within braces on its command line as text."""
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError(
            "give a whole number from 1, or a mapping from datasets to such numbers, as {reddit: 4}"
        )
    return number
