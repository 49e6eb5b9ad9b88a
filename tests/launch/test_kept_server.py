"""A kept server runs a command as its client would have run it, or not at all: then the client goes on by itself."""

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.errors import RunError, UserError
from harness.launch import kept_process, kept_server
from harness.launch.kept_server import KeptServer, can_be_served, find_folder, list_servers, run_by_server
from harness.launch.server_settings import KEEP_SERVER
from tests.launch.kept_client import KeptClient
from tests.processes import is_alive, wait_until

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KeptClient]:
    """A client whose server has not been started."""
    runtime = Path(tempfile.mkdtemp(dir="/tmp"))  # the path of a socket is short
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv(KEEP_SERVER, "10")
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    yield KeptClient(tmp_path)
    for server in list_servers():
        server.stop()
    shutil.rmtree(runtime)


@pytest.fixture
def served(client: KeptClient) -> KeptClient:
    """A client whose server runs."""
    assert client.is_plain()
    find_server()
    return client


def find_server() -> KeptServer:
    """Return the server, once it listens."""
    (server,) = wait_until(list_servers)
    return server


def test_command_has_all_that_its_client_has(served: KeptClient) -> None:
    (folder := served.folder / "elsewhere").mkdir()
    cores = sorted(os.sched_getaffinity(0))
    done = served.run("show", "naïve \udcff words", given="some input", cwd=folder, HARNESS_MINE="other")
    assert json.loads(done.stdout) == {
        "words": ["run", "show", "naïve \udcff words"],
        "text": "naïve \udcff words",
        "folder": str(folder),
        "input": "some input",
        "umask": _read_umask(),
        "files": [*resource.getrlimit(resource.RLIMIT_NOFILE)],
        "variable": None,
        "cores": cores,
        "path": str(served.folder),
        "threads": [int(os.environ.get("OMP_NUM_THREADS") or len(cores))],
        "inside": "other",
        "terminal": False,
        "line": False,
    }
    assert done.stderr == "to the error stream\n" and done.returncode == 0


def _read_umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def test_command_writes_to_the_terminal_of_its_client(served: KeptClient) -> None:
    terminal, its_end = os.openpty()
    with os.fdopen(terminal, "rb", buffering=0) as screen:
        process = served.start("show", "", stdin=subprocess.DEVNULL, stdout=its_end)
        os.close(its_end)
        shown = screen.read(4096)
        process.communicate()
    facts = json.loads(shown.decode().splitlines()[0])
    assert facts["terminal"] and facts["line"]


@pytest.mark.parametrize("code", [0, 1, 2, 70, -signal.SIGKILL, -signal.SIGTERM])
def test_client_exits_as_its_launcher_did(served: KeptClient, code: int) -> None:
    assert served.run("end", str(int(code))).returncode == code


def test_interrupt_of_a_client_interrupts_its_launcher(served: KeptClient) -> None:
    process = served.start("wait", str(served.folder), "0")
    launcher, _ = served.wait_for("launcher")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert (out, process.returncode) == ("interrupted\n", 130)
    assert not is_alive(launcher)


EARLY_INTERRUPT = """
import os, signal, socket
from harness.launch import kept_server

client, server = socket.socketpair()
if os.fork() == 0:
    client.close()
    server.sendall(kept_server.HELLO)
    (size,) = kept_server.LENGTH.unpack(server.recv(kept_server.LENGTH.size))
    server.recv(size, socket.MSG_WAITALL)
    os.kill(os.getppid(), signal.SIGINT)
    server.sendall(kept_server.STARTED_RUN)
    server.sendall(kept_server.EXIT_CODE.pack(100 + server.recv(1)[0]))
    os._exit(0)
server.close()
assert kept_server._Client(client).run(["run"]) == 100 + signal.SIGINT
"""


def test_interrupt_while_the_launcher_starts_is_forwarded() -> None:
    subprocess.run([sys.executable, "-c", EARLY_INTERRUPT], cwd=ROOT, check=True, timeout=30)


def test_stop_of_a_client_stops_its_launcher_and_ranks_until_it_continues(served: KeptClient) -> None:
    process = served.start("lead", str(served.folder))
    rank, launcher = served.wait_for("rank")
    process.send_signal(signal.SIGTSTP)
    for pid in (process.pid, launcher, rank):
        wait_until(lambda pid=pid: _read_state(pid) == "T")  # type: ignore[misc]
    process.send_signal(signal.SIGCONT)
    served.go()
    assert process.communicate(timeout=30)[0] == "7\n"


def _read_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_killed_client_takes_its_launcher_and_ranks_along(served: KeptClient) -> None:
    process = served.start("lead", str(served.folder))
    rank, launcher = served.wait_for("rank")
    process.kill()
    process.communicate()
    wait_until(lambda: not is_alive(launcher) and not is_alive(rank))


def test_ranks_are_forked_from_the_server_and_are_children_of_the_launcher(served: KeptClient) -> None:
    """A rank that imported everything anew would not have the command line of the server."""
    process = served.start("lead", str(served.folder))
    rank, launcher = served.wait_for("rank")
    words = Path(f"/proc/{rank}/cmdline").read_bytes()
    parents = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    served.go()
    assert process.communicate(timeout=30)[0] == "7\n"
    assert b"harness.launch.kept_process" in words and str(rank) in parents


def test_clients_run_at_the_same_time(served: KeptClient) -> None:
    (one := served.folder / "one").mkdir()
    (two := served.folder / "two").mkdir()
    processes = [served.start("wait", str(one), "3"), served.start("wait", str(two), "4")]
    for folder in (one, two):
        wait_until(lambda folder=folder: (folder / "launcher").exists())  # type: ignore[misc]
    for folder in (two, one):
        (folder / "go").touch()
    for process in processes:
        process.communicate(timeout=30)
    assert [process.returncode for process in processes] == [3, 4]


def test_run_outlives_its_server_whose_socket_the_next_server_takes(served: KeptClient) -> None:
    process = served.start("wait", str(served.folder), "5")
    served.wait_for("launcher")
    first = find_server()
    os.kill(first.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(first.pid))
    assert first.socket.exists()
    served.go()
    process.communicate(timeout=30)
    assert process.returncode == 5
    assert served.is_plain()
    assert find_server().socket == first.socket
    assert not served.is_plain()


def test_run_whose_host_is_killed_starts_again_without_a_server(served: KeptClient) -> None:
    process = served.start("wait", str(served.folder), "5")
    launcher, host = served.wait_for("launcher")
    os.kill(host, signal.SIGKILL)
    out, err = process.communicate(timeout=30)
    assert out == "plain\n" and "starts again" in err
    wait_until(lambda: not is_alive(launcher))


def limit_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))


@pytest.mark.parametrize(
    "more",
    [
        {"MALLOC_TOP_PAD_": "4096"},
        {"preexec_fn": limit_files},
        {"preexec_fn": lambda: os.umask(0o027)},
        {"preexec_fn": lambda: os.nice(1)},
    ],
    ids=["variable", "limit", "umask", "priority"],
)
def test_client_that_inherited_something_else_goes_on_by_itself(
    served: KeptClient, more: dict[str, Any]
) -> None:
    assert not served.is_plain()
    assert served.is_plain(**more)


def test_server_ends_when_what_it_imported_has_changed(served: KeptClient) -> None:
    server = find_server()
    assert not served.is_plain()
    os.utime(served.folder / "sitecustomize.py", ns=(0, 1))
    assert served.is_plain()
    wait_until(lambda: not is_alive(server.pid))
    assert find_server().pid != server.pid, "a server with the new code is started"
    assert not served.is_plain()


def test_modules_that_change_while_they_are_imported_are_not_served(client: KeptClient) -> None:
    """They may be imported in part."""
    assert client.is_plain(TOUCHED="1")
    assert client.is_plain(TOUCHED="1")
    folder = find_folder()
    assert folder
    wait_until(lambda: not [*folder.iterdir()])


def test_server_that_fails_at_its_start_leaves_the_reason_and_is_done_without(client: KeptClient) -> None:
    assert client.is_plain(BROKEN="1")
    assert client.is_plain(BROKEN="1")
    folder = find_folder()
    assert folder
    wait_until(lambda: any("a broken library" in log.read_text() for log in folder.glob("*.log")))
    wait_until(lambda: not [*folder.glob("*.socket")])


def test_idle_server_ends_and_removes_its_files(client: KeptClient) -> None:
    more = {KEEP_SERVER: "0.001"}
    assert client.is_plain(**more)
    folder = find_folder()
    assert folder
    wait_until(lambda: not [*folder.iterdir()])


def test_server_with_a_run_is_not_idle(client: KeptClient, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = client.folder / "ended"

    def host(*_: Any) -> None:
        time.sleep(1.0)
        ended.touch()
        os._exit(0)

    def accept_late(_: socket.socket) -> bool:
        time.sleep(0.2)
        return True

    monkeypatch.setattr(kept_process, "_run_host", host)
    monkeypatch.setattr(kept_process, "is_peer_own", accept_late)
    path = client.folder / "socket"
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as its_client,
    ):
        monkeypatch.chdir(path.parent)  # the path of a socket is short
        listener.bind(path.name)
        listener.listen()
        its_client.connect(path.name)
        kept_process._serve(listener, lambda: None, 0.1, {}, {})
    assert ended.exists()


def test_stopped_server_leaves_its_runs_alone(served: KeptClient) -> None:
    process = served.start("wait", str(served.folder), "5")
    served.wait_for("launcher")
    server = find_server()
    server.stop()
    assert not is_alive(server.pid) and not list_servers() and not server.socket.exists()
    served.go()
    process.communicate(timeout=30)
    assert process.returncode == 5


def test_server_that_forks_is_stopped(client: KeptClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python ignores what a handler raises in the functions around a fork. Finding the server makes it fork."""
    monkeypatch.setenv("SLOW_FORK", "yes")
    assert client.is_plain()
    server = find_server()
    time.sleep(0.1)  # until it forks
    server.stop()
    assert not list_servers()


def test_server_that_does_not_end_is_named(served: KeptClient, monkeypatch: pytest.MonkeyPatch) -> None:
    server = find_server()
    os.kill(server.pid, signal.SIGSTOP)
    monkeypatch.setattr(kept_server, "WAIT_SECONDS", 0.1)
    with pytest.raises(RunError, match=f"did not end.*kill -9 {server.pid}"):
        server.stop()
    os.kill(server.pid, signal.SIGCONT)
    wait_until(lambda: not is_alive(server.pid))


# Other users.


def test_client_sends_nothing_to_a_server_of_another_user(
    client: KeptClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = find_folder()
    assert folder
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(kept_server.name_socket(folder)))
        listener.listen()
        listener.settimeout(60)
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert run_by_server(["run"]) is None
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(1) == b"", "the client closes the connection at once"


def test_server_does_not_answer_clients_of_another_user(client: KeptClient) -> None:
    code = (client.folder / "sitecustomize.py").read_text()
    foreign = "\nif 'kept_process' in ' '.join(sys.orig_argv): os.geteuid = lambda: os.getuid() + 1\n"
    (client.folder / "sitecustomize.py").write_text(code + foreign)
    assert client.is_plain()
    server = find_server()
    assert client.is_plain()
    assert is_alive(server.pid), "it goes on for its own user"


@pytest.mark.parametrize("place", ["runtime folder", "temporary folder"])
def test_folder_that_others_may_open_or_made_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    if place == "runtime folder":
        tmp_path.chmod(0o700)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        name = "harness"
    else:
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        name = f"harness-servers-{os.getuid()}"
    assert find_folder() == tmp_path / name
    for mode in (0o755, 0o720, 0o701):
        (tmp_path / name).chmod(mode)
        assert find_folder() is None
    (tmp_path / name).rmdir()
    (private := tmp_path / "other").mkdir(mode=0o700)
    (tmp_path / name).symlink_to(private)
    assert find_folder() is None
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir(mode=0o700)
    user = os.getuid()
    found = os.stat_result

    def belongs_to_another(path: Path) -> Any:
        known = [*os.lstat(path)]
        known[4] = user + (path.name == name)
        return found(known)

    monkeypatch.setattr(Path, "lstat", belongs_to_another)
    assert find_folder() is None


def test_runtime_folder_that_others_may_open_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (open_to_all := tmp_path / "runtime").mkdir(mode=0o777)
    open_to_all.chmod(0o777)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(open_to_all))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert find_folder() == tmp_path / f"harness-servers-{os.getuid()}"


# What is not served.


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        (["runs", "list"], {}),
        (["run", "--in-process"], {}),
        (["run", "--launches=5"], {}),
        (["run", "--spec", "/dev/fd/63"], {}),
        (["run"], {"RANK": "0", "WORLD_SIZE": "2"}),
        (["run"], {"SLURM_JOB_ID": "7"}),
    ],
)
def test_command_that_depends_on_its_process_is_not_served(
    words: list[str], settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "gettrace", lambda: None)
    assert can_be_served(["run", "--strategy", "serial"], {})
    assert can_be_served(["check", "serial"], {})
    assert not can_be_served(words, settings)


def test_debugged_command_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "gettrace", lambda: print)
    assert not can_be_served(["run"], {})


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf"])
def test_time_of_a_server_is_validated(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(KEEP_SERVER, text)
    monkeypatch.setattr(sys, "gettrace", lambda: None)
    monkeypatch.setattr(os, "environ", {KEEP_SERVER: text})
    with pytest.raises(UserError, match="a number of minutes, such as 10"):
        run_by_server(["run"])


def test_nothing_is_kept_unless_the_user_asks(client: KeptClient) -> None:
    assert client.is_plain(**{KEEP_SERVER: ""})
    assert not list_servers()


# A run.


def _read_ticks_of_children(pid: int) -> int:
    """Return the CPU time of children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[13]) + int(fields[14])


def _run_harness(tmp_path: Path, *words: str) -> dict[str, Any]:
    """Return the answer of `harness WORDS`."""
    done = subprocess.run(
        [sys.executable, "-m", "harness", *words, "--json"],
        cwd=ROOT,
        env={**os.environ, "HARNESS_RESULTS": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_served_run_records_the_same_as_any_run(client: KeptClient, tmp_path: Path) -> None:
    words = ["run", "--strategy", "cagnet-1d", "--dataset", "tiny-sbm", "--ranks", "2"]
    plain = _run_harness(tmp_path, *words)
    server = find_server()
    before = _read_ticks_of_children(server.pid)
    fresh = _run_harness(tmp_path, *words, "--fresh")
    wait_until(lambda: _read_ticks_of_children(server.pid) > before + 5)  # the run was not served otherwise
    assert list_servers() == [server] and not fresh["cached"]
    for key in ("run_id", "status", "label"):
        assert fresh[key] == plain[key]
    assert fresh["provenance"]["command"] == plain["provenance"]["command"].replace(
        " --json", " --fresh --json"
    )
    assert fresh["provenance"]["env"] == plain["provenance"]["env"]
    assert fresh["summary"]["final_loss"] == plain["summary"]["final_loss"]


def test_launches_that_are_forked_from_a_server_record_its_process(
    client: KeptClient, tmp_path: Path
) -> None:
    words = ["run", "--strategy", "serial", "--dataset", "tiny-sbm", "--set", "training.epochs=2"]
    _run_harness(tmp_path, *words)
    find_server()
    one, other = (_run_harness(tmp_path, *words, "--set", f"launch={launch}") for launch in (1, 2))
    every = _run_harness(tmp_path, *words, "--launches", "5")
    processes = [launch["provenance"]["process"] for launch in every]
    assert processes[1:3] == [each["provenance"]["process"] for each in (one, other)]
    assert processes[1] == processes[2]
    assert len({*processes}) == 4  # the server forked launches 1 and 2, and no other


def test_next_check_is_served(client: KeptClient, tmp_path: Path) -> None:
    words = ["check", "serial", "--quick", "--case", "aggregate first"]
    plain = _run_harness(tmp_path, *words)
    server = find_server()
    before = _read_ticks_of_children(server.pid)
    served = _run_harness(tmp_path, *words)
    wait_until(lambda: _read_ticks_of_children(server.pid) > before + 5)
    assert [each["law"] for each in served["findings"]] == [each["law"] for each in plain["findings"]]
    assert list_servers() == [server]
