"""What one of several jobs does of a build: every so-many-th thing of a step.

    order      a partition, where one has to be computed; for one job
    scatter    pieces of the source
    settle     rows of blocks
    features   the same rows

A step begins when the one before has ended in all jobs. Whatever no job has done, an ordinary build does, which also
ends what the jobs began.
"""

import re
from typing import Literal, NamedTuple, get_args

from harness.errors import UserError

Step = Literal["order", "scatter", "settle", "features"]
STEPS: tuple[Step, ...] = get_args(Step)
EVERYTHING = slice(None)


class Share(NamedTuple):
    """Of one job."""

    step: Step
    number: int
    jobs: int

    @property
    def mine(self) -> slice:
        """Of the things of this step, in their order."""
        return slice(self.number, None, self.jobs)

    def __str__(self) -> str:
        return f"{self.step}:{self.number}/{self.jobs}"


def share(text: str) -> Share:
    """STEP:NUMBER/JOBS, the jobs counted from 0."""
    found = re.fullmatch(rf"({'|'.join(STEPS)}):(\d{{1,9}})/(\d{{1,9}})", text)
    if found is None or int(found[2]) >= int(found[3]):
        raise UserError(
            f"--share {text}: a share is STEP:NUMBER/JOBS, as scatter:0/4; the steps are {', '.join(STEPS)}, and the "
            "jobs are counted from 0."
        )
    return Share(found[1], int(found[2]), int(found[3]))  # type: ignore[arg-type]
