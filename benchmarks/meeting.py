"""The start of 2048 ranks, simulated on one machine: how they meet, and which files they ask for.

    python benchmarks/meeting.py world [--ranks 2048]     clients of a board and of rank 0's store, in a few processes
    python benchmarks/meeting.py files [--ranks 2048]     calls about files of ranks under strace, and a model

`world`: rank 0 posts its address at the launcher's board once all other ranks have asked. Times are from its post. The
address is the loopback of IPv6. torch's clients ask for its name: without `::1 localhost6` in /etc/hosts, all wait
for a name server.
`files`: the calls of a rank that imports everything itself, and of ranks that the first task of their node forks. The
model multiplies: all ranks import; one task of each node does; the environment is staged to the nodes; the store, too.
"""

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path

from measuring import argument_parser, spec_of
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from harness.comm.rendezvous import RENDEZVOUS, Rendezvous, find_address, publish_address
from harness.launch.library_caches import CACHE_FOLDERS
from harness.launch.rank_starter import PYTHON_SETTINGS, make_rank_environment
from harness.spec.root import find_root
from harness.spec.spec import canonical_json

PROCESSES = 4
PATIENCE = timedelta(minutes=5)
POLL = 0.05
"""The interval at which a launcher attends to its board, and at which ranks used to list a folder."""


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("part", choices=("world", "files"))
    parser.add_argument("--ranks", type=int, default=2048)
    parser.add_argument("--per-node", type=int, default=4, help="ranks of a node")
    options = parser.parse_args()
    (world if options.part == "world" else files)(options)


def world(options: argparse.Namespace) -> None:
    others = options.ranks - 1
    shares = [others // PROCESSES + (number < others % PROCESSES) for number in range(PROCESSES)]
    context = get_context("fork")  # before any thread is started
    ready, done = context.Barrier(PROCESSES + 1), context.Queue()
    board = Rendezvous("127.0.0.1")
    os.environ |= board.environment
    clients = [context.Process(target=ask_all, args=(share, ready, done)) for share in shares]
    for client in clients:
        client.start()
    ready.wait()
    heard = 0.0
    for _ in range(int(3 / POLL)):  # all have asked, and wait
        heard += timed(board)
        time.sleep(POLL)
    store = TCPStore("127.0.0.1", 0, options.ranks, is_master=True, timeout=PATIENCE, wait_for_workers=False)
    store.set("world", board.name)
    with tempfile.TemporaryDirectory() as folder:
        begun, used = time.time(), time.process_time()
        poster = threading.Thread(target=publish_address, args=(Path(folder) / "meeting", "::1", store.port))
        poster.start()
        while any(client.is_alive() for client in clients) and done.qsize() < PROCESSES:
            heard += timed(board)
            time.sleep(POLL)
        ended = [done.get() for _ in clients]
    for client in clients:
        client.join()
    told, met, counted = (max(times) - begun for times in zip(*ended, strict=True))
    print(f"{options.ranks} ranks, {PROCESSES} processes of clients on {os.cpu_count()} cores")
    print(f"all know the address   {told:7.2f} s after rank 0's post")
    print(f"all have the store     {met:7.2f} s, and its name of the world is the board's")
    print(f"all have counted       {counted:7.2f} s: one addition a rank, then each waits for the last")
    print(
        f"board, processor time  {heard:7.2f} s; with the store of rank 0 {time.process_time() - used:.2f} s"
    )
    listing(options.ranks)


def timed(board: Rendezvous) -> float:
    begun = time.thread_time()
    board.serve()
    return time.thread_time() - begun


def ask_all(ranks: int, ready: Barrier, done: "object") -> None:
    """A thread for each of some ranks; the times at which the last of them knew, met and had counted."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    name, world = os.environ[RENDEZVOUS].split()[0], PROCESSES * ranks
    ready.wait()

    def rank(_: int) -> tuple[float, float, float]:
        host, port = find_address(Path("nowhere"), PATIENCE)
        told = time.time()
        store = TCPStore(host, port, world, is_master=False, timeout=PATIENCE, wait_for_workers=False)
        assert store.get("world").decode() == name
        met = time.time()
        store.add("count", 1)
        return told, met, time.time()

    with ThreadPoolExecutor(ranks) as pool:
        times = list(pool.map(rank, range(ranks)))
    done.put(tuple(max(each) for each in zip(*times, strict=True)))  # type: ignore[attr-defined]


def listing(ranks: int) -> None:
    """What the same wait cost in listings of a shared folder."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(ranks):
            (Path(folder) / f"stacks-{number}").touch()
        begun = time.perf_counter()
        for _ in range(50):
            os.listdir(folder)  # noqa: PTH208
        each = (time.perf_counter() - begun) / 50
    asked = (ranks - 1) / POLL
    print(
        f"without the board: {asked:,.0f} listings of {ranks} entries a second, each {1e3 * each:.2f} ms on a "
        f"local disk: {asked * each:.0f} s of a file system's time for each second that rank 0 is late"
    )


CALL = re.compile(r'^(?:\d+ +)?(?P<call>\w+)\([^"]*"(?P<path>[^"]*)"')
OWN = ("/proc", "/dev", "/sys", "/etc", "/tmp", "/run")


def files(options: argparse.Namespace) -> None:
    """A node of two tasks and one of four are traced: their difference is a task with its rank."""
    root = find_root()
    with tempfile.TemporaryDirectory(dir=root) as shared, tempfile.TemporaryDirectory() as local:
        caches = {name: f"{local}/{folder}" for name, folder in CACHE_FOLDERS.items()}
        alone = one_run(root, Path(shared) / "0", 2, caches, forked=False)  # fills the caches
        alone = one_run(root, Path(shared) / "1", 2, caches, forked=False)
        few, many = (one_run(root, Path(shared) / str(tasks), tasks, caches, forked=True) for tasks in (2, 4))
    each = Counter({name: (many[name] - few[name]) // 2 for name in many})
    node = Counter({name: few[name] - 2 * each[name] for name in few})
    nodes = -(-options.ranks // options.per_node)
    print("calls about files (strace -f -e trace=file,getdents64), by the owner of the file")
    print(
        f"{'':34}{'rank alone':>11}{'first of node':>14}{'each rank':>10}{f'{nodes} x {options.per_node}':>14}"
    )
    whole: Counter[str] = Counter()
    for name in sorted({*alone, *many}, key=lambda name: -alone[name]):
        whole[name] = node[name] * nodes + each[name] * options.ranks
        print(f"{name:34}{alone[name]:>11,}{node[name]:>14,}{each[name]:>10,}{whole[name]:>14,}")
    own = "the node itself"
    before = options.ranks * sum(number for name, number in alone.items() if name != own)
    total = sum(number for name, number in whole.items() if name != own)
    staged = total - whole["the environment"] - whole["the harness"]
    print(f"asked of the shared file system if each rank imports    {before:>14,}")
    print(f"with one import a node                                  {total:>14,}")
    print(f"and the environment on the nodes' disks                 {staged:>14,}")
    print(
        f"and the store of the graph there, too                   {staged - whole['the store of the graph']:>14,}"
    )


def one_run(root: Path, scratch: Path, tasks: int, caches: dict[str, str], *, forked: bool) -> Counter[str]:
    """The calls of one rank that imports by itself, or of all tasks of a node whose ranks are forked."""
    asked = {"strategy": "cagnet-1d", "dataset": "tiny-sbm", "ranks": tasks, "training": {"epochs": 1}}
    spec = spec_of(asked)
    scratch.mkdir(parents=True)
    (scratch / "spec.json").write_text(canonical_json(spec.model_dump(mode="json")))
    words = ["--scratch", scratch, "--runs", scratch / "runs", "--meeting", scratch / "meeting"]
    module = ["harness.launch.node_task"] if forked else []
    command = [sys.executable, "-m", *module, "harness.run.rank", *map(str, words)]
    running = []
    for number in range(tasks):
        traced = forked or number == 1
        trace = ["strace", "-f", "-e", "trace=file,getdents64", "-o", str(scratch / f"trace-{number}")]
        settings = {**make_rank_environment(spec.machine, tasks, root, number), **caches, **PYTHON_SETTINGS}
        settings |= {RENDEZVOUS: f"{scratch.name}-{os.getpid()} 127.0.0.1 1"} if forked else {}
        running.append(subprocess.Popen([*(trace if traced else []), *command], env=settings))
    codes = [task.wait() for task in running]
    assert not any(codes), codes
    lines = (line for file in scratch.glob("trace-*") for line in file.read_text().splitlines())
    found = (CALL.match(line) for line in lines)
    return Counter(place(Path(match["path"]), root, scratch) for match in found if match)


def place(path: Path, root: Path, scratch: Path) -> str:
    """Whose file it is. A relative path is of the folder in which the rank works."""
    where = Path(os.path.normpath(root / path))
    if where.is_relative_to(scratch):
        return "the folder of the run"
    if where.is_relative_to(root / "datasets"):
        return "the store of the graph"
    if where.is_relative_to(root / "harness") or where.is_relative_to(root / "strategies"):
        return "the harness"
    if str(where).startswith(OWN):
        return "the node itself"
    return "the environment"


if __name__ == "__main__":
    main()
