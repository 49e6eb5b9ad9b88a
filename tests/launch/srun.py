"""An srun that starts its tasks on this machine, as many as its line says, with the variables that a step's tasks find.

FAKE_SRUN_TASKS makes it start another number, as an srun does that goes by its environment. FAKE_SRUN_SAYS makes it say
something and fail, as when a node is lost.
"""

import os
import signal
import sys
import time
from collections.abc import Mapping

from harness.launch.fork_server import ForkServer


class ImportsOnce(ForkServer):
    """A fork server for tasks whose variables of Slurm differ."""

    def prepare(self, environment: Mapping[str, str]) -> None:
        if self._process is None:
            super().prepare(environment)


def main() -> int:
    if says := os.environ.get("FAKE_SRUN_SAYS"):
        print(says, file=sys.stderr)
        return 1
    told = dict(word[2:].partition("=")[::2] for word in sys.argv[1:] if word.startswith("--"))
    command = next(number for number, word in enumerate(sys.argv) if number and not word.startswith("--"))
    world, per_node = int(told["ntasks"]), int(told["distribution"].removeprefix("plane="))
    world = int(os.environ.get("FAKE_SRUN_TASKS", world))
    places = [
        {
            "SLURM_PROCID": rank,
            "SLURM_NTASKS": world,
            "SLURM_LOCALID": rank % per_node,
            "SLURM_STEP_ID": 0,
        }
        for rank in range(world)
    ]
    environments = [{**os.environ, **{key: str(value) for key, value in place.items()}} for place in places]
    with ImportsOnce() as server:  # the line is python -m MODULE WORDS
        tasks = list(server.start(sys.argv[command + 2 :], environments, (0, 1, 2)))
    signal.signal(signal.SIGTERM, lambda number, _: [task.send_signal(number) for task in tasks])
    while not any(task.poll() for task in tasks) and any(task.poll() is None for task in tasks):
        time.sleep(0.02)
    failed = [(rank, task.poll()) for rank, task in enumerate(tasks) if task.poll()]
    for rank, code in failed:
        how = f"Exited with exit code {code}" if code > 0 else signal.strsignal(-code)
        print(f"srun: error: here: task {rank}: {how}", file=sys.stderr, flush=True)
    for task in tasks:
        task.send_signal(signal.SIGKILL)
        task.wait()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
