"""What all tests share: ranks that stay alive for the session, a study that is drawn once, repeatable examples."""

import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from tempfile import gettempdir
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from harness.runtime.launch.fork_server import ForkServer
    from harness.runtime.launch.worker_pool import Pool


settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("repeatable")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background: children would be as deaf
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints where the time of the tests went, folder by folder."""
    seconds: Counter[str] = Counter()
    for report in (report for reports in terminalreporter.stats.values() for report in reports):
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid.partition("::")[0].removeprefix("tests/").partition("/")[0]] += (
                report.duration
            )
    folders = ", ".join(f"{folder} {spent:.0f}" for folder, spent in seconds.most_common() if spent >= 1)
    terminalreporter.write_line(f"seconds by folder: {folders or 'less than one'}")


@pytest.fixture(scope="session", autouse=True)
def no_network() -> Iterator[None]:
    """Sockets of tests reach this machine and no other, except in tests that ask the publishers."""
    if os.environ.get("HARNESS_NETWORK_TEST") == "1":
        yield
        return
    connect = socket.socket.connect

    def guarded(link: socket.socket, address: Any) -> None:
        outside = link.family in (socket.AF_INET, socket.AF_INET6) and address[0] != "localhost"
        if outside and not ip_address(address[0]).is_loopback:
            raise AssertionError(f"a test wanted to reach {address}")
        connect(link, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded)
        yield


@pytest.fixture
def only_testbed() -> Iterator[None]:
    """The emulated hosts of this machine, which has one set of them: tests in other processes wait."""
    from harness.base.locks import acquire_lock

    with acquire_lock(Path(gettempdir()) / f"testbed-of-tests-{os.geteuid()}.lock"):
        yield


@pytest.fixture(scope="session")
def pool() -> "Iterator[Pool]":
    """Rank processes; the first job pays for importing torch, the others for a process group."""
    from harness.cli.commands.checking import CASE_MODULES
    from harness.runtime.launch.fork_server import PRELOADED_MODULES
    from harness.runtime.launch.worker_pool import Pool

    with Pool(modules=(*PRELOADED_MODULES, *CASE_MODULES)) as processes:
        yield processes


@pytest.fixture(scope="session")
def fork_server() -> "Iterator[ForkServer]":
    """The fork server of launched runs: a launch without one imports torch and pandas anew."""
    from harness.runtime.launch.fork_server import ForkServer

    class Shared(ForkServer):
        """A fork server that stays although the environment changes from test to test."""

        def prepare(self, environment: Mapping[str, str]) -> None:
            mine = ("PYTEST_CURRENT_TEST", "HARNESS_RESULTS")  # the name of a test, and a folder of its own
            super().prepare({key: text for key, text in environment.items() if key not in mine})

    with Shared() as server:
        yield server


@pytest.fixture(scope="module")
def ranks_at_hand(fork_server: "ForkServer") -> Iterator[None]:
    """`main(["run", ...])` in the tests of a module forks its ranks from the server of the session."""
    from harness.runtime.launch.fork_server import ForkServer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ForkServer, "__enter__", lambda _: fork_server)
        patch.setattr(ForkServer, "__exit__", lambda *_: None)
        yield


@pytest.fixture(scope="session")
def ranks(pool: "Pool") -> Callable[..., list[Any]]:
    """`ranks(world, function, *arguments)`: the results of a top-level function on every rank, in rank order."""
    return pool.run


@pytest.fixture(scope="session")
def synthetic() -> SimpleNamespace:
    """The functions of tests/synthetic_runs.py."""
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).parent / "synthetic_runs.py")))


@pytest.fixture(scope="session")
def study(synthetic: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synthetic study with runs/, tables/ and figures/, made once for all workers; tests only read it.

    drawn.json has the steps that the drawing announced.
    """
    from harness.base.locks import acquire_lock
    from harness.report.figures import FramedTables, draw_all
    from harness.results.collect import collect
    from harness.results.parquet import write_claims

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "study"
    with acquire_lock(folder.with_suffix(".lock")):
        if not folder.exists():
            making = base / "study-in-the-making"
            synthetic.write_study(making / "runs")
            collect(making / "runs", making / "tables")
            write_claims(making / "tables" / "claims.parquet", synthetic.claims(), making / "tables")
            announced: list[tuple[int, int, str]] = []
            draw_all(
                FramedTables(making / "tables"), making / "figures", lambda *step: announced.append(step)
            )
            (making / "drawn.json").write_text(json.dumps(announced))
            making.rename(folder)
    return folder


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: a build leaves folders in its source."""
    source, root = tmp_path_factory.mktemp("source"), Path(__file__).parents[1]
    for name in ("harness", "tests", "datasets/catalog"):  # the links in harness become what they lead to
        shutil.copytree(root / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, source / name)
    build = "from setuptools.build_meta import build_wheel; build_wheel('.')"
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return next(source.glob("*.whl"))
