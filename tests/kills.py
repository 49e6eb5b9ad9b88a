"""Commands that are killed at random: real processes, forked from one that has imported everything."""

import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

WARM = ["harness.cli", "harness.graph.fetch.download", "harness.results.collect", "tests.kills"]


def command(words: list[str], environment: dict[str, str], steps: int, folder: str) -> None:
    """`harness WORDS` in this process; killed before its so-manieth step that changes a folder, if `steps` is not 0."""
    from harness.cli import main

    os.environ.update(environment)
    os.environ.pop("https_proxy", None)
    sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    if steps:
        sys.addaudithook(_killing(steps, folder))
    os._exit(main(words))


def _killing(steps: int, folder: str) -> Callable[[str, tuple[object, ...]], None]:
    """Counts what changes files of the folder, and kills its own process at a step."""
    left = steps

    def hook(event: str, told: tuple[object, ...]) -> None:
        nonlocal left
        writes = event == "open" and isinstance(told[1], str) and set(told[1]) & set("wax+")
        if (writes or event in ("os.rename", "os.remove", "os.mkdir", "fcntl.flock", "os.listdir")) and (
            event == "fcntl.flock" or str(told[0]).startswith(folder)
        ):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return hook


class Killer:
    """Starts a command again and again, and kills it."""

    def __init__(self, words: list[str], folder: Path, **environment: str) -> None:
        self._words, self._environment, self._folder = words, environment, folder
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(WARM)

    def start(self, steps: int = 0) -> multiprocessing.process.BaseProcess:
        """The command, under way."""
        told = (self._words, self._environment, steps, str(self._folder))
        process = self._context.Process(target=command, args=told)
        process.start()
        return process

    def run(self) -> None:
        """The command to its end, which is a good one."""
        process = self.start()
        process.join(60)
        assert process.exitcode == 0, process.exitcode

    def kill_at_random(
        self, rng: random.Random, longest: float, begun: Callable[[], bool] = lambda: True
    ) -> bool:
        """Whether it was killed, some time after it had begun, and not ended before."""
        process = self.start()
        while process.is_alive() and not begun():
            time.sleep(0.002)
        time.sleep(rng.uniform(0, longest))
        process.kill()
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
        return process.exitcode != 0

    def kill_at_step(self, step: int) -> bool:
        """Whether it was killed at a step; if not, it has fewer, and came to its end."""
        process = self.start(step)
        process.join(60)
        assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
        return process.exitcode != 0
