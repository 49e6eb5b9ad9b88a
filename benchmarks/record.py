"""Runs the benchmarks and writes the output of each to benchmarks/results/, with the commit, machine and settings.

    python benchmarks/record.py             all, about half an hour: let the machine do nothing else
    python benchmarks/record.py epoch pool  some

`comparison`, `compose`, `links`, `network`, `slope`, `batch`, `pipelines`, `plexus`, `prediction`, `rivals`, `sampling`
and `scalegnn` need root. One thread, and the allocator's settings of config/machines/local.yaml, as the launcher gives
them. A page grows by the output of each command. If the recording of a page is stopped, the next one on the same commit
continues with the commands that are missing. Outside of a git repository a hash of the code stands for the commit.
"""

import os
import subprocess
import sys
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

from measuring import SPEED_LOST, argument_parser

from harness.run.provenance import collect_provenance
from harness.spec.machine_card import load_machine
from harness.spec.root import find_root

SCHEMES = [
    ("cagnet-1d", 4, "4"),
    ("cagnet-1d", 8, "8"),
    ("cagnet-1.5d", 4, "2x2"),
    ("cagnet-1.5d", 8, "4x2"),
    ("cagnet-2d", 4, "2x2"),
    ("cagnet-2d", 8, "4x2"),
    ("cagnet-2d:weight_gradient=T", 4, "2x2"),
    ("cagnet-2d:weight_gradient=T,moves=all_gather", 4, "2x2"),
    ("cagnet-2d:weight_gradient=T,moves=all_gather", 8, "4x2"),
    ("cagnet-3d", 4, "2x1x2"),
    ("cagnet-3d:weight_gradient=T,moves=all_gather", 4, "2x1x2"),
    ("cagnet-3d", 8, "2x2x2"),
    ("cagnet-sa-1d", 4, "4"),
    ("cagnet-sa-1.5d", 4, "2x2"),
]

FOLDERS_OF_CODE = ("harness", "strategies", "benchmarks")
TESTBED_COMMANDS = ("benchmarks/testbed up", "benchmarks/testbed down")


def on_testbed(hosts: int, rate: str, *commands: str) -> list[str]:
    """Benchmarks on so many emulated hosts, with links of this rate."""
    up, down = TESTBED_COMMANDS
    return [
        f"{up} --hosts {hosts} --rate {rate}",
        *(f"benchmarks/testbed run -- python benchmarks/{command}" for command in commands),
        down,
    ]


COMMANDS = {
    "prediction": [
        "benchmarks/prediction.py products",
        "benchmarks/prediction.py loopback --ranks 4",
        "benchmarks/prediction.py loopback --ranks 8",
        *on_testbed(4, "100mbit", "prediction.py links --rate 100 --epochs 2"),
        *on_testbed(4, "200mbit", "prediction.py links --rate 200"),
        *on_testbed(8, "200mbit", "prediction.py links --rate 200 --epochs 2"),
        *on_testbed(8, "400mbit", "prediction.py links --rate 400 --epochs 2"),
        *on_testbed(4, "400mbit", "prediction.py links --rate 400 --dataset amazon-shape --epochs 1"),
        "benchmarks/prediction.py memory --dataset ogbn-products@1/64",
    ],
    "claims": ["-m harness claims --twins"],
    "findings": [
        *(
            f"benchmarks/findings.py {part}"
            for part in ("balance", "model", "dimensions", "settings", "gain", "swaps", "edges")
        ),
    ],
    "comparison": [
        "benchmarks/comparison.py measured",
        "benchmarks/comparison.py predicted",
        "benchmarks/comparison.py table",
    ],
    "bench": ["benchmarks/bench.py"],
    "epoch": [
        "benchmarks/epoch.py serial --dataset sbm-4096",
        "benchmarks/epoch.py serial --dataset rmat-17 --turns 7",
        "benchmarks/epoch.py parallel --dataset sbm-4096 --ranks 2",
        "benchmarks/epoch.py parallel --dataset rmat-17 --ranks 4 --turns 7",
        "benchmarks/epoch.py recording --dataset rmat-17 --ranks 2",
        "benchmarks/epoch.py kernels --dataset rmat-17 --ranks 4 --turns 7 cagnet-1d cagnet-1.5d@2x2 cagnet-2d@2x2 "
        "cagnet-2d:weight_gradient=T@2x2 cagnet-3d@2x1x2 cagnet-sa-1d cagnet-sa-1.5d@2x2 plexus@2x2x1",
    ],
    "spmm": ["benchmarks/spmm.py"],
    "loops": ["benchmarks/loops.py"],
    "sampling": [
        "benchmarks/sampling.py --scale 20 --bulk 1 2 4 8 16 32 64",
        *on_testbed(4, "200mbit", "bulks.py"),
    ],
    "collectives": ["benchmarks/collectives.py"],
    "links": [
        *on_testbed(4, "200mbit", "links.py"),
    ],
    "network": [
        *on_testbed(4, "200mbit", "network.py --rate 200"),
    ],
    "compose": [
        command
        for rate in (200, 1000)
        for hosts in (4, 8)
        for command in on_testbed(
            hosts,
            f"{rate}mbit",
            *(
                f"compose.py pairs --rate {rate} --dataset {graph}"
                for graph in ("reddit-shape", "rmat-17", "amazon-shape", "coauthor-cs --hidden 32")
            ),
        )
    ],
    "rivals": [
        command
        for rate in (200, 1000)
        for hosts in (4, 8)
        for command in on_testbed(hosts, f"{rate}mbit", f"compose.py inexact --rate {rate} --dataset rmat-17")
    ],
    "wires": [*on_testbed(4, "10gbit", "wires.py"), *on_testbed(4, "200mbit", "wires.py")],
    "slope": ["benchmarks/slope.py"],
    "batch": ["benchmarks/batch.py --on-slurm --runs 100"],
    "schemes": [
        *(
            f"benchmarks/epoch.py parallel --dataset {dataset} --ranks {ranks} --strategy {name} --grid {grid}{turns}"
            for dataset, turns in (("rmat-17", " --turns 5"), ("sbm-4096", ""))
            for name, ranks, grid in SCHEMES
        ),
    ],
    "partitions": ["benchmarks/partitions.py"],
    "caches": ["benchmarks/caches.py"],
    "pipelines": [
        *on_testbed(4, "200mbit", "pipelines.py --rate 200", "pipelines.py --rate 200 --bin-nodes 5000"),
        # Two ranks have a core each, and their words travel about as long as they compute.
        *on_testbed(2, "400mbit", "pipelines.py --rate 400 --bin-nodes 5000"),
    ],
    "building": [
        "benchmarks/building.py rmat --scale 22",
        "benchmarks/building.py text --lines 20000000",
        "benchmarks/building.py twins ogbn-papers100m 1/64 1/16 1/4 1",
    ],
    "plexus": [
        "benchmarks/epoch.py against --dataset rmat-17 --ranks 8 --hidden 128 --turns 3 "
        "plexus@2x2x2 cagnet-2d@2x4 cagnet-3d@2x2x2",
        "benchmarks/loading.py --dataset rmat-21 --grid 2x2x2",
        "benchmarks/plexus_model.py measured",
        "benchmarks/plexus_model.py published",
        *on_testbed(
            4, "200mbit", "network.py --rate 200 --hidden 128 --epochs 2 --only plexus cagnet-2d cagnet-3d"
        ),
        *on_testbed(8, "200mbit", "plexus_grids.py"),
        *on_testbed(16, "200mbit", "plexus_grids.py"),
    ],
    "minibatches": ["benchmarks/minibatches.py"],
    "staleness": ["benchmarks/staleness.py"],
    "scalegnn": [
        *on_testbed(2, "200mbit", "ablation.py --grid 1x1x2x1"),
        *on_testbed(4, "200mbit", *(f"ablation.py --grid {grid}" for grid in ("1x2x2x1", "2x1x2x1"))),
        # Sampling is a quarter of the epoch.
        *on_testbed(2, "10gbit", "ablation.py --grid 1x1x2x1 --hidden 8 --batch 65536 --epochs 7"),
    ],
    "ledger": ["benchmarks/ledger.py"],
    "pool": ["benchmarks/pool.py"],
    "replay": ["benchmarks/replay.py"],
    "startup": ["benchmarks/startup.py"],
    "meeting": ["benchmarks/meeting.py world", "benchmarks/meeting.py files"],
    "studies": ["benchmarks/studies.py"],
}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(COMMANDS))
    names = parser.parse_args().names or list(COMMANDS)
    if unknown := set(names) - set(COMMANDS):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(COMMANDS)}")
    for name in names:
        page = find_root() / "benchmarks" / "results" / f"{name}.md"
        keep_page(page, COMMANDS[name])
        print(page, flush=True)


def keep_page(page: Path, commands: list[str]) -> None:
    """Run the commands that an unfinished page of this code lacks, then put the page in its place."""
    root = find_root()
    settings = {"OMP_NUM_THREADS": "1", **load_machine(root, "local").allocator}
    os.environ.update(settings)
    # Benchmarks find this checkout first, installed or not, and then whatever the caller put on the path.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    unfinished = page.with_suffix(".md.part")
    page.parent.mkdir(exist_ok=True)
    facts = collect_provenance(root)
    version = version_of_code(root, facts["commit"])
    text = unfinished.read_text() if unfinished.exists() else ""
    if version not in text:
        text = f"# {page.stem}\n\n{origin(facts, version, settings)}\n"
    done = text.count("\n    python ")
    if open_testbed := standing(commands[:done]):
        ran(root, open_testbed)
    code = 0
    for command in commands[done:]:
        printed, code = ran(root, command)
        if code not in (0, SPEED_LOST):
            sys.exit(
                f"{command} failed with exit code {code}. Run the same again to continue {page.name} from here."
            )
        text += f"\n    python {command}\n" + (f"\n{printed}\n" if printed else "")
        unfinished.write_text(text)
    unfinished.replace(page)
    if code == SPEED_LOST:
        sys.exit(code)


def standing(commands: list[str]) -> str | None:
    """The command that set up the testbed which these commands leave standing, if any."""
    testbeds = [command for command in commands if command.startswith(TESTBED_COMMANDS)]
    return testbeds[-1] if testbeds and "testbed up" in testbeds[-1] else None


def version_of_code(root: Path, commit: str | None) -> str:
    """Return what identifies the code on a page: the commit or, outside of a git repository, a hash of the files."""
    if commit is not None:
        return f"Commit {commit[:10]}"
    digest = sha256()
    for path in sorted(chain(*(root.glob(f"{folder}/**/*.py") for folder in FOLDERS_OF_CODE))):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return f"No commit: code {digest.hexdigest()[:10]}"


def origin(facts: dict[str, Any], version: str, settings: dict[str, str]) -> str:
    """Return a paragraph with the machine, code, versions and settings of the numbers below."""
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    gpu = f", {facts['gpu']}" if facts["gpu"] else ""
    state = ", with changes" if facts["dirty"] else ""
    versions = ", ".join(f"{package} {number}" for package, number in facts["versions"].items())
    return (
        f"{facts['cores']} cores of {facts['cpu']}, {gib:.0f} GiB{gpu}, load {facts['load_average']:.1f} at the start. "
        f"{version}{state}. {versions}. "
        + " ".join(f"{key}={value}" for key, value in settings.items())
        + "."
    )


def ran(root: Path, command: str) -> tuple[str, int]:
    """The output of a benchmark, tables unchanged and anything else as a block, and its exit code."""
    done = subprocess.run([sys.executable, *command.split()], cwd=root, stdout=subprocess.PIPE, text=True)
    printed = done.stdout.strip()
    return printed if "| --- |" in printed or not printed else f"```\n{printed}\n```", done.returncode


if __name__ == "__main__":
    main()
