"""The time that the harness needs to start ranks, and to run jobs on them."""

import json
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median
from typing import Any

import torch
import yaml
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from benchmarks.measuring import seconds_of, spec_of
from benchmarks.registry import Results, Table, benchmark
from harness.comm import engine
from harness.comm.grid import Grid
from harness.comm.rendezvous import RENDEZVOUS, Rendezvous, find_address, publish_address
from harness.ledger import AxisName, Ledger, TensorName
from harness.results.record import read_record
from harness.runtime.launch.launch import launch
from harness.runtime.launch.library_caches import CACHE_FOLDERS
from harness.runtime.launch.rank_starter import PYTHON_SETTINGS, make_rank_environment, make_rank_starter
from harness.runtime.launch.series import launch_series
from harness.runtime.launch.worker_pool import Pool
from harness.spec.root import find_root
from harness.spec.spec import Spec, canonical_json

# A job on the pool.


@benchmark
def pool(ranks: tuple[int, ...] = (1, 2, 4, 8), jobs: int = 9) -> Results:
    """Time an empty job on the pool of workers, and a job that builds a grid and reduces a number.

    The first job of all starts the server that imports torch, the first of each size starts ranks. Later jobs are
    medians.

    Args:
        ranks: sizes of jobs
        jobs: later jobs of each kind
    """
    with Pool() as workers:

        def milliseconds(size: int, job: Callable[[], object]) -> float:
            return 1e3 * seconds_of(lambda: workers.run(size, job))

        yield f"first job, one rank: {milliseconds(1, do_nothing):.0f} ms"
        yield Table("ranks", "first ms:.0f", "later, empty ms:.0f", "later, reducing ms:.0f")
        for size in ranks:
            first = milliseconds(size, reduce_number)
            later = (
                median(milliseconds(size, job) for _ in range(jobs)) for job in (do_nothing, reduce_number)
            )
            yield size, first, *later
        begun = time.perf_counter()
    yield f"close: {1e3 * (time.perf_counter() - begun):.0f} ms"


def do_nothing() -> None:
    """Do nothing, on one rank."""


def reduce_number() -> float:
    """Sum a number over all ranks."""
    grid = Grid.build({AxisName.P: engine.world_size()}, Ledger())
    return float(grid.world.all_reduce(torch.ones(1), tensor=TensorName.COUNT))


# One run.

BARE_RANK = (
    'import torch, torch.distributed as dist; dist.init_process_group("gloo"); dist.destroy_process_group()'
)


@benchmark
def startup(ranks: int = 4, rounds: int = 5) -> Results:
    """Time the start of a run, next to a bare torchrun whose ranks import torch and exit.

    The two take turns. `to the record` is a whole `harness run` of one epoch on the tiny graph, from the start of the
    process to its exit.
    """
    names = ("bare torchrun", "to the first epoch", "to the record")
    measured = [(run_torchrun(ranks), *run_harness(ranks)) for _ in range(rounds)]
    seconds = dict(zip(names, zip(*measured, strict=True), strict=True))
    yield Table("what", "median s:.2f", "best s:.2f", "over torchrun:.2f")
    for name, taken in seconds.items():
        yield name, median(taken), min(taken), median(taken) / median(seconds["bare torchrun"])


def run_torchrun(ranks: int) -> float:
    """Return the seconds of a torchrun."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "bare.py"
        script.write_text(BARE_RANK)
        words = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", str(script)]
        return seconds_of(lambda: subprocess.run([sys.executable, *words], check=True, capture_output=True))


def run_harness(ranks: int) -> tuple[float, float]:
    """Return the seconds to the first epoch, and to the record."""
    asked = {"strategy": "cagnet-1d", "dataset": "tiny-sbm", "ranks": ranks}
    spec = spec_of({**asked, "training": {"epochs": 1, "warmup": 0}})
    with tempfile.TemporaryDirectory() as folder:
        begun, clock = time.time(), time.perf_counter()
        path = launch(spec, find_root(), Path(folder) / "runs", lambda _: None) / "record.json"
        taken = time.perf_counter() - clock
        record = json.loads(path.read_text())
        assert record["status"] == "ok", record["error"]
        return record["provenance"]["first_epoch"] - begun, taken


# Commands.

SMOKE = "workflows/experiments/smoke.yaml"
ONE_RANK = "run --strategy serial --dataset tiny-sbm"
FOUR_RANKS = "run --strategy cagnet-1d --dataset tiny-sbm --ranks 4"
COMMANDS = {
    "fetch of a generated graph": "data fetch tiny-lattice",
    "build of a built graph": "data build tiny-sbm",
    "list of the runs": "runs list",
    "plan of the smoke's runs": f"plan {SMOKE}",
    "a run that exists": ONE_RANK,
    "run, 1 rank": f"{ONE_RANK} --fresh",
    "run, 4 ranks": f"{FOUR_RANKS} --fresh",
    "collect of the smoke's runs": "collect",
    "report of the smoke's runs": "report",
    "figures of the smoke's runs, SVG": "figures --pictures svg --out figures",
}
LOAD = "import harness; harness.load('results')"


@benchmark
def commands(rounds: int = 3, without_workflow: bool = False) -> Results:
    """Time commands next to `import torch`: CPU seconds of the process and its children, in turns.

    The commands read the runs of the smoke in a temporary project. Everything is run once before it is timed, so that
    kernels are compiled, files are in memory, and graphs are built.

    Args:
        without_workflow: do not time the smoke workflow, which is run once more in a new project
    """
    words = {"import torch": ["-c", "import torch"]}
    words |= {name: ["-m", "harness", *shlex.split(command)] for name, command in COMMANDS.items()}
    words["load of the smoke's runs"] = ["-c", LOAD]
    with tempfile.TemporaryDirectory() as folder:
        root = make_project(Path(folder) / "project")
        run_smoke(root)
        seconds = dict[str, list[float]]()
        for number in range(rounds + 1):
            for name, command in words.items():
                spent, _ = measure_cpu([sys.executable, *command], root)
                if number:
                    seconds.setdefault(name, []).append(spent)
        unit = seconds["import torch"]
        yield Table("command", "CPU s:.2f", "times import torch:.2f")
        for name, taken in seconds.items():
            yield name, median(taken), median(one / base for one, base in zip(taken, unit, strict=True))
        if not without_workflow:
            used, clock = run_smoke(make_project(Path(folder) / "another"))
            yield "the smoke workflow", used, used / median(unit)
            yield f"The smoke workflow took {clock:.0f} s by the clock."


def make_project(root: Path) -> Path:
    """Make a project with the workflows and cards of this one."""
    for name in ("config", "datasets", "results"):
        (root / name).mkdir(parents=True)
    for name in ("workflow", "workflows", "config/machines", "datasets/catalog"):
        (root / name).symlink_to(find_root() / name)
    return root


def run_smoke(root: Path) -> tuple[float, float]:
    """Run the smoke workflow as `make smoke` does; return its CPU seconds and those by the clock."""
    options = ["--profile", "workflows/profiles/local", "--config", f"experiment={SMOKE}", "pictures=svg"]
    return measure_cpu([sys.executable, "-m", "snakemake", "all", "verify", *options], root)


def measure_cpu(command: list[str], root: Path) -> tuple[float, float]:
    """Run a command; return the CPU seconds of its processes, and the seconds by the clock."""
    begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, cwd=root, env={**os.environ, "HARNESS_ROOT": str(root)}, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{shlex.join(command)} failed:\n{done.stdout}{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used, time.perf_counter() - begun


# Many runs in one job.

RUNS_BETWEEN = 10
"""Runs after which one is started without the harness."""
SLURM_CARD = {"slurm": {"ranks_per_node": 4, "interfaces": ["lo"], "minutes": 5}}


@benchmark
def batch(runs: int = 200, ranks: int = 2, machine: str = "local", on_slurm: bool = False) -> Results:
    """Time many tiny runs in one job, next to the same ranks started bare: what does the harness add to a run?

    A bare run is the rank processes alone, started by the same command with the same environment, until the last exit.
    Bare runs are spread among the others. The goal is 1.3 times the bare time, and less than a second a run.

    Args:
        runs: number of runs
        machine: name of the machine's card
        on_slurm: in a job of the Slurm that the tests start (needs root and Debian's packages)
    """
    if on_slurm:
        yield run_in_job(runs, ranks)
        return
    specs = [make_launch(number, ranks, machine) for number in range(runs)]
    root = find_root()
    taken, bare = 0.0, []
    with tempfile.TemporaryDirectory(prefix="batch-", dir=root / "results") as folder:
        for start in range(0, len(specs), RUNS_BETWEEN):
            bare.append(run_bare(specs[start], root, Path(folder) / f"bare-{start}"))
            begun = time.perf_counter()
            some, place = specs[start : start + RUNS_BETWEEN], Path(folder) / "results" / "runs"
            outcomes = list(launch_series(some, root, place, lambda _: None))
            taken += time.perf_counter() - begun
            statuses = {
                read_record(each.folder).record["status"] if each.folder else each.why for each in outcomes
            }
            assert statuses == {"ok"}, statuses
    own, each = median(bare), taken / len(specs)
    yield Table("runs", "ranks", "own time, s:.2f", "in the batch, s:.2f", "added, s:.2f", "over own:.2f")
    yield len(specs), ranks, own, each, each - own, each / own


def make_launch(number: int, ranks: int, machine: str) -> Spec:
    """Return the spec of one of the tiny runs."""
    asked = {"strategy": "cagnet-1d", "dataset": "tiny-sbm", "ranks": ranks, "machine": machine}
    return spec_of({**asked, "launch": number, "training": {"epochs": 5, "warmup": 1}})


def write_spec(spec: Spec, scratch: Path) -> list[str]:
    """Write a spec where ranks read it; return the words that follow `harness.runtime.rank`."""
    scratch.mkdir(parents=True)
    (scratch / "spec.json").write_text(canonical_json(spec.model_dump(mode="json")))
    words = ["--scratch", scratch, "--runs", scratch / "runs", "--meeting", scratch / "meeting"]
    return ["harness.runtime.rank", *map(str, words)]


def run_bare(spec: Spec, root: Path, scratch: Path) -> float:
    """Return the seconds of the rank processes of a run, from the first start to the last exit."""
    starter = make_rank_starter(spec.machine, spec.ranks, root, write_spec(spec, scratch))
    begun = time.perf_counter()
    ranks = [subprocess.Popen(starter.command, env=one) for one in starter.environments]
    codes = [rank.wait() for rank in ranks]
    assert not any(codes), codes
    return time.perf_counter() - begun


def run_in_job(runs: int, ranks: int) -> str:
    """Return what the benchmark prints inside one job of a private Slurm, whose one machine plays both nodes."""
    root = find_root()
    card = root / "config" / "machines" / "batch-benchmark.yaml"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        command = [sys.executable, str(root / "tests" / "slurm" / "cluster.py"), folder]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as cluster:
            assert cluster.stdin and cluster.stdout
            status, pid, *_ = cluster.stdout.readline().split()
            assert status == "up", status
            card.write_text(yaml.safe_dump(SLURM_CARD))
            try:
                words = ["launching.batch", "--runs", runs, "--ranks", ranks, "--machine", card.stem]
                line = shlex.join([sys.executable, "-m", "benchmarks", *map(str, words)])
                options = ["--wait", "--nodes=1", "--ntasks=4", "--mem=6000", "--time=60"]
                job = ["sbatch", *options, f"--chdir={root}", f"--output={folder}/out", "--wrap", line]
                subprocess.run(["nsenter", f"--mount=/proc/{pid}/ns/mnt", *job], stdout=subprocess.DEVNULL)
                return Path(folder, "out").read_text().strip()
            finally:
                card.unlink()
                cluster.stdin.close()


# The start of thousands of ranks.

PROCESSES = 4
PATIENCE = timedelta(minutes=5)
POLL_SECONDS = 0.05
"""The interval at which a launcher serves its rendezvous, and at which ranks used to list a folder."""


@benchmark
def rendezvous(ranks: int = 2048) -> Results:
    """Time how thousands of ranks meet: clients of a rendezvous and of rank 0's store, in a few processes.

    Rank 0 posts its address at the launcher's rendezvous once all other ranks have asked. Times are from its post. The
    address is the loopback of IPv6. torch's clients ask for its name: without `::1 localhost6` in /etc/hosts, all wait
    for a name server. The last line has what the same wait cost when ranks listed a shared folder.
    """
    others = ranks - 1
    shares = [others // PROCESSES + (number < others % PROCESSES) for number in range(PROCESSES)]
    context = get_context("fork")  # before any thread is started
    ready, done = context.Barrier(PROCESSES + 1), context.Queue()
    board = Rendezvous("127.0.0.1")
    os.environ |= board.environment
    clients = [context.Process(target=meet_as_clients, args=(share, ready, done)) for share in shares]
    for client in clients:
        client.start()
    ready.wait()
    heard = 0.0
    for _ in range(int(3 / POLL_SECONDS)):  # all have asked, and wait
        heard += serve_once(board)
    store = TCPStore("127.0.0.1", 0, ranks, is_master=True, timeout=PATIENCE, wait_for_workers=False)
    store.set("world", board.name)
    with tempfile.TemporaryDirectory() as folder:
        begun, used = time.time(), time.process_time()
        poster = threading.Thread(target=publish_address, args=(Path(folder) / "meeting", "::1", store.port))
        poster.start()
        while any(client.is_alive() for client in clients) and done.qsize() < PROCESSES:
            heard += serve_once(board)
        ended = [done.get() for _ in clients]
    for client in clients:
        client.join()
    told, met, counted = (max(times) - begun for times in zip(*ended, strict=True))
    yield f"{ranks} ranks, {PROCESSES} processes of clients on {os.cpu_count()} cores"
    yield Table("after rank 0's post", "s:.2f")
    yield "all know the address", told
    yield "all have the store, and its name of the world is the rendezvous' own", met
    yield "all have counted: one addition a rank, then each waits for the last", counted
    yield "processor time of the rendezvous", heard
    yield "processor time of the rendezvous and the store of rank 0", time.process_time() - used
    yield time_listings(ranks)


def serve_once(board: Rendezvous) -> float:
    """Return the processor seconds of serving a rendezvous once; then wait as a launcher does."""
    begun = time.thread_time()
    board.serve()
    taken = time.thread_time() - begun
    time.sleep(POLL_SECONDS)
    return taken


def meet_as_clients(ranks: int, ready: Barrier, done: Any) -> None:
    """Run a thread for each of some ranks; report when the last of them knew the address, met and had counted."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    name, world = os.environ[RENDEZVOUS].split()[0], PROCESSES * ranks
    ready.wait()

    def meet(_: int) -> tuple[float, float, float]:
        host, port = find_address(Path("nowhere"), PATIENCE)
        told = time.time()
        store = TCPStore(host, port, world, is_master=False, timeout=PATIENCE, wait_for_workers=False)
        assert store.get("world").decode() == name
        met = time.time()
        store.add("count", 1)
        return told, met, time.time()

    with ThreadPoolExecutor(ranks) as threads:
        times = list(threads.map(meet, range(ranks)))
    done.put(tuple(max(each) for each in zip(*times, strict=True)))


def time_listings(ranks: int) -> str:
    """Say what the same wait costs in listings of a shared folder."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(ranks):
            (Path(folder) / f"stacks-{number}").touch()
        each = seconds_of(lambda: [os.listdir(folder) for _ in range(50)]) / 50  # noqa: PTH208
    asked = (ranks - 1) / POLL_SECONDS
    return (
        f"without the rendezvous: {asked:,.0f} listings of {ranks} entries a second, each {1e3 * each:.2f} ms on a "
        f"local disk: {asked * each:.0f} s of a file system's time for each second that rank 0 is late"
    )


CALL = re.compile(r'^(?:\d+ +)?(?P<call>\w+)\([^"]*"(?P<path>[^"]*)"')
FOLDERS_OF_NODE = ("/proc", "/dev", "/sys", "/etc", "/tmp", "/run")
ENVIRONMENT, HARNESS, STORE, NODE = (
    "the environment",
    "the harness",
    "the store of the graph",
    "the node itself",
)


@benchmark
def file_calls(ranks: int = 2048, per_node: int = 4) -> Results:
    """Count the calls about files as thousands of ranks start, by the owner of the file.

    Traced with strace are a rank that imports everything itself, and the tasks of a node whose ranks are forked: two
    tasks, then four, whose difference is a task with its rank. A model multiplies: all ranks import; one task of each
    node does; the environment is staged to the nodes; the graph's store too.

    Args:
        per_node: ranks of a node
    """
    root = find_root()
    with tempfile.TemporaryDirectory(dir=root) as shared, tempfile.TemporaryDirectory() as local:
        caches = {name: f"{local}/{folder}" for name, folder in CACHE_FOLDERS.items()}
        count_calls(root, Path(shared) / "0", 2, caches, forked=False)  # fills the caches
        alone = count_calls(root, Path(shared) / "1", 2, caches, forked=False)
        few, many = (
            count_calls(root, Path(shared) / str(tasks), tasks, caches, forked=True) for tasks in (2, 4)
        )
    each = Counter({name: (many[name] - few[name]) // 2 for name in many})
    node = Counter({name: few[name] - 2 * each[name] for name in few})
    nodes = -(-ranks // per_node)
    total: Counter[str] = Counter()
    yield Table(
        "owner of the file",
        *("rank alone:,", "first of node:,", "each rank:,", f"{nodes} x {per_node}:,"),
        title="calls about files (strace -f -e trace=file,getdents64)",
    )
    for name in sorted({*alone, *many}, key=lambda name: -alone[name]):
        total[name] = node[name] * nodes + each[name] * ranks
        yield name, alone[name], node[name], each[name], total[name]
    yield Table("asked of the shared file system", "calls:,")
    yield "if each rank imports", ranks * sum(count for name, count in alone.items() if name != NODE)
    shared_calls = sum(count for name, count in total.items() if name != NODE)
    staged = shared_calls - total[ENVIRONMENT] - total[HARNESS]
    yield "with one import a node", shared_calls
    yield "and the environment on the nodes' disks", staged
    yield "and the store of the graph there too", staged - total[STORE]


def count_calls(
    root: Path, scratch: Path, tasks: int, caches: dict[str, str], *, forked: bool
) -> Counter[str]:
    """Count the calls of one rank that imports by itself, or of all tasks of a node whose ranks are forked."""
    asked = {"strategy": "cagnet-1d", "dataset": "tiny-sbm", "ranks": tasks, "training": {"epochs": 1}}
    spec = spec_of(asked)
    command = [
        sys.executable,
        "-m",
        *(["harness.runtime.launch.node_task"] if forked else []),
        *write_spec(spec, scratch),
    ]
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
    return Counter(find_owner(Path(match["path"]), root, scratch) for match in found if match)


def find_owner(path: Path, root: Path, scratch: Path) -> str:
    """Return whose file it is. A relative path is of the folder in which the rank works."""
    where = Path(os.path.normpath(root / path))
    if where.is_relative_to(scratch):
        return "the folder of the run"
    if where.is_relative_to(root / "datasets"):
        return STORE
    if where.is_relative_to(root / "harness") or where.is_relative_to(root / "strategies"):
        return HARNESS
    return NODE if str(where).startswith(FOLDERS_OF_NODE) else ENVIRONMENT
