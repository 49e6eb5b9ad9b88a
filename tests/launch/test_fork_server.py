"""A fork server starts ranks whatever modules print, and a failed start raises the reason and the output."""

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

import pytest
import yaml

from harness.base.errors import RunError, UserError
from harness.runtime.launch.fork_server import PRELOADED_MODULES, Child, ForkServer, describe_exit
from harness.runtime.launch.rank_starter import make_rank_starter
from harness.runtime.launch.time_limits import START_LIMITS, StartLimits
from harness.spec.machine_card import load_machine, load_start_seconds
from tests.python_path import with_python_path

pytestmark = pytest.mark.long


def replace_modules(*names: str) -> str:
    """Return the code of a `sitecustomize` that puts empty modules in place of these."""
    return f"""
    import os, sys, types
    for name in {names}:
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].warm_up_compiler = lambda: None
"""


QUICK = replace_modules(*PRELOADED_MODULES, "harness.kernels.jit")
"""Replaces all modules whose import takes seconds, so that the server does not import torch."""
FORKS_FAIL = """
    fork, server = os.fork, os.getpid()

    def failing():
        if WHERE:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return fork()

    os.fork = failing
"""
PROGRAM = """
    def main():
        print("here")
        return 0
"""


def settings(folder: Path, **modules: str) -> Mapping[str, str]:
    """Return the environment of a fork server that finds these modules before all others."""
    for name, code in {"program": PROGRAM, **modules}.items():
        (folder / f"{name}.py").write_text(dedent(code))
    return with_python_path(folder)


def run_program(folder: Path, limits: StartLimits = START_LIMITS, **modules: str) -> Child:
    with ForkServer() as server:
        (child,) = start(server, folder, settings(folder, **modules), limits)
        child.wait()
    return child


def start(
    server: ForkServer,
    folder: Path,
    environment: Mapping[str, str],
    limits: StartLimits = START_LIMITS,
) -> list[Child]:
    """Start one rank with an empty input, which writes to a log."""
    with (folder / "log").open("ab") as log, Path(os.devnull).open() as nothing:
        streams = nothing.fileno(), log.fileno(), log.fileno()
        return list(server.start(["program"], [environment], streams, limits))


def test_output_of_modules_does_not_disturb_reports(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A module system may greet every Python, on both streams."""
    child = run_program(
        tmp_path,
        sitecustomize=QUICK + "    print(1); print('pid 1'); print('careful', file=sys.stderr, flush=True)",
    )
    assert child.pid != 1 and child.poll() == 0
    assert "here" in (tmp_path / "log").read_text()
    assert "careful" in capfd.readouterr().err, "the warning of an import was lost"


@pytest.mark.parametrize(
    ("modules", "told"),
    [
        (
            {"torch": "raise ImportError('libcudart.so.12: cannot open shared object file')"},
            ["exited with code 1", "importing torch", "libcudart.so.12"],
        ),
        (
            {"torch": "import os, sys; print('so far', flush=True); os.kill(os.getpid(), 9)"},
            ["killed by SIGKILL", "importing torch", "so far"],
        ),
        (
            {"torch": "import os, time; os.closerange(3, 99); time.sleep(600)"},
            ["importing torch"],
        ),
        (
            {"sitecustomize": QUICK + FORKS_FAIL.replace("WHERE", "True")},
            [os.strerror(errno.EAGAIN)],
        ),
        (
            {"sitecustomize": QUICK + FORKS_FAIL.replace("WHERE", "os.getpid() != server")},
            [os.strerror(errno.EAGAIN)],
        ),
        (
            {"sitecustomize": QUICK + "    os.getppid = lambda: 1"},
            ["process 1"],
        ),
    ],
)
def test_error_says_how_the_server_ended_or_failed_to_fork(
    tmp_path: Path, modules: dict[str, str], told: list[str]
) -> None:
    with pytest.raises(RunError) as caught:
        run_program(tmp_path, StartLimits(ending=1.0), **modules)
    assert all(words in str(caught.value) for words in told), caught.value


def test_slow_start_reports_its_stage_and_the_key_of_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine card has the limit."""
    (tmp_path / "config" / "machines").mkdir(parents=True)
    (tmp_path / "config" / "machines" / "slow.yaml").write_text(yaml.safe_dump({"start_seconds": 2.5}))
    for name, value in settings(tmp_path, torch="import time; time.sleep(600)").items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    starter = make_rank_starter(load_machine(tmp_path, "slow"), 1, tmp_path, ["harness.runtime.rank"])
    starter = starter._replace(start_limits=starter.start_limits._replace(report_interval=0.3))
    messages: list[str] = []
    with ForkServer() as server, pytest.raises(RunError) as caught:
        list(starter.start(server, tmp_path / "log", messages.append))
    for words in ("importing torch", "2.5 s", "start_seconds in config/machines/slow.yaml"):
        assert words in str(caught.value)
    assert any("importing torch" in line for line in messages), messages


def test_start_limit_is_validated_and_not_part_of_a_run_id(tmp_path: Path) -> None:
    machines = []
    for card in ({"threads_per_rank": 1}, {"start_seconds": 600}):
        (tmp_path / "config" / "machines").mkdir(parents=True, exist_ok=True)
        (tmp_path / "config" / "machines" / "mine.yaml").write_text(yaml.safe_dump(card))
        machines.append(load_machine(tmp_path, "mine"))
    assert machines[0] == machines[1], "the start limit is part of a spec"
    assert load_start_seconds(tmp_path, "mine") == 600
    assert load_start_seconds(tmp_path, "elsewhere") >= 120, "a spec may name a machine that has no card here"
    for wrong in (0, -1, "long"):
        (tmp_path / "config" / "machines" / "mine.yaml").write_text(yaml.safe_dump({"start_seconds": wrong}))
        with pytest.raises(UserError, match="start_seconds"):
            load_machine(tmp_path, "mine")


def test_server_that_died_between_starts_is_reported_and_replaced(tmp_path: Path) -> None:
    with ForkServer() as server:
        environment = settings(tmp_path, sitecustomize=QUICK)
        (first,) = start(server, tmp_path, environment)
        first.wait()
        server._process._process.kill()  # type: ignore[union-attr]
        with pytest.raises(RunError, match="SIGKILL"):
            start(server, tmp_path, environment)
        (again,) = start(server, tmp_path, environment)
        assert again.wait() == 0, "the next start has no new server"


def test_exit_codes_are_described_in_words() -> None:
    codes = {3: "exited with code 3", -9: "killed by SIGKILL", -35: "killed by signal 35"}
    assert {code: describe_exit(code) for code in codes} == codes


def test_no_file_of_the_working_directory_is_imported_as_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of downloaded data may contain a scipy.py."""
    data = tmp_path / "data"
    data.mkdir()
    for name in ("scipy", "numba", "selectors", "program"):
        (data / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.chdir(data)
    not_numba = (name for name in PRELOADED_MODULES if not name.startswith("harness.kernels"))
    environment = settings(tmp_path, sitecustomize=replace_modules(*not_numba))
    with ForkServer() as server:
        (child,) = start(server, tmp_path, environment)
        assert child.wait() == 0
    assert "here" in (tmp_path / "log").read_text() and not (tmp_path / "ran").exists()
