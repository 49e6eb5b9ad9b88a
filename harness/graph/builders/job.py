"""One of several jobs that build a store together.

Each job does every `job_count`-th item of a step:

    1. order      compute the partition, if there is one; a single job
    2. scatter    pieces of the source
    3. settle     rows of blocks
    4. features   rows of blocks

A step may start once all jobs of the previous step have finished. An ordinary build does whatever remains and
publishes the store.
"""

import re
from typing import Literal, NamedTuple, get_args

from harness.base.errors import UserError

Step = Literal["order", "scatter", "settle", "features"]
STEPS: tuple[Step, ...] = get_args(Step)


class BuildJob(NamedTuple):
    """A job's share of one step."""

    step: Step
    number: int
    job_count: int

    @property
    def items(self) -> slice:
        """The items of the step that this job does."""
        return slice(self.number, None, self.job_count)

    def __str__(self) -> str:
        return f"{self.step}:{self.number}/{self.job_count}"


def parse_build_job(text: str) -> BuildJob:
    """Parse STEP:NUMBER/JOBS; jobs are numbered from 0."""
    match = re.fullmatch(rf"({'|'.join(STEPS)}):(\d{{1,9}})/(\d{{1,9}})", text)
    if match is None or int(match[2]) >= int(match[3]):
        raise UserError(
            f"--share {text}: expected STEP:NUMBER/JOBS, for example scatter:0/4. Steps are {', '.join(STEPS)}; jobs "
            "are numbered from 0."
        )
    return BuildJob(match[1], int(match[2]), int(match[3]))  # type: ignore[arg-type]
