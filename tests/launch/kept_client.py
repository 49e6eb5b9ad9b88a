"""Clients of a kept server that imports nothing large, and the commands that they run."""

import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

from harness.launch.fork_server import PRELOADED_MODULES
from harness.launch.kept_process import LAUNCHER_MODULES
from tests.processes import wait_until
from tests.python_path import with_python_path

REPLACED = (
    *PRELOADED_MODULES,
    *LAUNCHER_MODULES,
    "harness.kernels.jit",
    "torch",
    "numba.core.config",
    "harness.cli",
)
QUICK = f"""
import os, sys, time, types

if "SLOW_FORK" in os.environ:
    os.register_at_fork(after_in_parent=lambda: time.sleep(0.5))
for name in {REPLACED}:
    sys.modules[name] = types.ModuleType(name)


def warm_up_compiler():
    if "TOUCHED" in os.environ:
        os.utime(__file__)
    if "BROKEN" in os.environ:
        raise ImportError("a broken library")


def main(words):
    from command import main
    return main(words)


threads = []
sys.modules["harness.kernels.jit"].warm_up_compiler = warm_up_compiler
sys.modules["torch"].set_num_threads = threads.append
sys.modules["numba.core.config"].reload_config = lambda: None
sys.modules["harness.cli"].main = main
"""
"""A `sitecustomize` with which a server imports nothing large, and runs the command of the test instead of a verb."""
COMMAND = """
import json, os, resource, signal, sys, time
from pathlib import Path


def main(words):
    return globals()[words[1]](*words[2:])


def show(text):
    umask = os.umask(0)
    os.umask(umask)
    import sitecustomize
    facts = {
        "words": sys.argv[1:], "text": text, "folder": os.getcwd(), "input": sys.stdin.read(), "umask": umask,
        "files": resource.getrlimit(resource.RLIMIT_NOFILE), "variable": os.environ.get("MINE"),
        "cores": sorted(os.sched_getaffinity(0)), "path": sys.path[0], "threads": sitecustomize.threads,
        "inside": os.environ.get("HARNESS_MINE"), "terminal": os.isatty(1), "line": sys.stdout.line_buffering,
    }
    print(json.dumps(facts))
    print("to the error stream", file=sys.stderr)
    return 0


def end(code):
    if code.startswith("-"):
        os.kill(os.getpid(), -int(code))
    return int(code)


def wait(folder, code):
    place = Path(folder)
    (place / "launcher.new").write_text(f"{os.getpid()} {os.getppid()}")
    (place / "launcher.new").rename(place / "launcher")
    try:
        while not (place / "go").exists():
            time.sleep(0.01)
    except KeyboardInterrupt:
        print("interrupted")
        return 130
    return int(code)


def lead(folder):
    from harness.launch.fork_server import ForkServer
    with ForkServer() as server, open(os.devnull) as null, open(f"{folder}/log", "a") as log:
        streams = null.fileno(), log.fileno(), log.fileno()
        (rank,) = server.start(["rank", folder], [dict(os.environ)], streams)
        print(rank.wait(), flush=True)
    return 0
"""
RANK = """
import os, sys, time
from pathlib import Path


def main():
    place = Path(sys.argv[1])
    (place / "rank.new").write_text(f"{os.getpid()} {os.getppid()}")
    (place / "rank.new").rename(place / "rank")
    while not (place / "go").exists():
        time.sleep(0.01)
    return 7
"""
CLIENT = """
import os, sys
from harness.launch.kept_server import keep_server, run_by_server

code = run_by_server(sys.argv[1:])
if code is None:
    print("plain", flush=True)
    keep_server(dict(os.environ))
sys.exit(code)
"""


class KeptClient:
    """Starts clients in a folder that has the modules of their server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, code in {
            "sitecustomize": QUICK,
            "command": COMMAND,
            "rank": RANK,
            "client": CLIENT,
        }.items():
            (folder / f"{name}.py").write_text(dedent(code))

    def start(self, *words: str, **more: Any) -> "subprocess.Popen[str]":
        """Start `harness run WORDS`; `more` are arguments of the process, and variables in capital letters."""
        settings = {name: more.pop(name) for name in [*more] if name.isupper()}
        pipe, environment = subprocess.PIPE, with_python_path(self.folder, **settings)
        environment.pop("PYTEST_CURRENT_TEST", None)  # it differs between a fixture and its test
        return subprocess.Popen(
            [sys.executable, str(self.folder / "client.py"), "run", *words],
            env=environment,
            **{"stdin": pipe, "stdout": pipe, "stderr": pipe, "text": True, **more},
        )

    def run(self, *words: str, given: str = "", **more: Any) -> "subprocess.CompletedProcess[str]":
        process = self.start(*words, **more)
        out, err = process.communicate(given, timeout=30)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def is_plain(self, **more: Any) -> bool:
        """Return True if a client was not served."""
        return self.run("end", "0", **more).stdout == "plain\n"

    def wait_for(self, name: str) -> tuple[int, int]:
        """Return the process that wrote its id to a file, and its parent."""
        pid, parent = wait_until(lambda: _read_words(self.folder / name))
        return int(pid), int(parent)

    def go(self) -> None:
        """Let the commands that wait go on."""
        (self.folder / "go").touch()


def _read_words(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []
