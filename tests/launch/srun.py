"""An srun that starts its tasks on this machine, as many as its line says, with the variables that a step's tasks find.

FAKE_SRUN_TASKS makes it start another number, as an srun does that goes by its environment. FAKE_SRUN_SAYS makes it say
something and fail, as when a node is lost.
"""

import os
import signal
import sys
import time

from harness.runtime.launch.fork_server import ForkServer


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
    program = sys.argv[command + 2 :]  # the line is python -m MODULE WORDS
    if program[0] == "harness.runtime.launch.node_task":
        program.pop(0)  # all tasks are ranks that are forked from here
    with ForkServer() as server:
        tasks = list(server.start(program, environments, (0, 1, 2)))
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
