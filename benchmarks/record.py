"""Runs the benchmarks and writes the output of each to benchmarks/results/, with the commit, machine and settings.

    python benchmarks/record.py             all, about half an hour: let the machine do nothing else
    python benchmarks/record.py epoch pool  some

`links`, `network`, `slope`, `batch`, `pipelines`, `plexus`, `sampling` and `scalegnn` need root. One thread, and the
allocator's settings of config/machines/local.yaml, as the launcher gives them.
"""

import os
import subprocess
import sys
from pathlib import Path

from measuring import argument_parser

from harness.run.provenance import provenance
from harness.spec.machine_card import load_machine
from harness.spec.root import project_root

SCHEMES = [
    ("cagnet-1d", 4, "4"),
    ("cagnet-1d", 8, "8"),
    ("cagnet-1.5d", 4, "2x2"),
    ("cagnet-1.5d", 8, "4x2"),
    ("cagnet-2d", 4, "2x2"),
    ("cagnet-2d", 8, "4x2"),
    ("cagnet-2d:weight_gradient=T", 4, "2x2"),
    ("cagnet-3d", 4, "2x1x2"),
    ("cagnet-3d", 8, "2x2x2"),
    ("cagnet-sa-1d", 4, "4"),
    ("cagnet-sa-1.5d", 4, "2x2"),
]

COMMANDS = {
    "epoch": [
        "benchmarks/epoch.py serial --dataset sbm-4096",
        "benchmarks/epoch.py serial --dataset rmat-17 --turns 7",
        "benchmarks/epoch.py parallel --dataset sbm-4096 --ranks 2",
        "benchmarks/epoch.py parallel --dataset rmat-17 --ranks 4 --turns 7",
        "benchmarks/epoch.py recording --dataset rmat-17 --ranks 2",
    ],
    "spmm": ["benchmarks/spmm.py"],
    "sampling": [
        "benchmarks/sampling.py --scale 20 --bulk 1 2 4 8 16 32 64",
        "benchmarks/testbed up --hosts 4 --rate 200mbit",
        "benchmarks/testbed run -- python benchmarks/bulks.py",
        "benchmarks/testbed down",
    ],
    "collectives": ["benchmarks/collectives.py"],
    "links": [
        "benchmarks/testbed up --hosts 4 --rate 200mbit",
        "benchmarks/testbed run -- python benchmarks/links.py",
        "benchmarks/testbed down",
    ],
    "network": [
        "benchmarks/testbed up --hosts 4 --rate 200mbit",
        "benchmarks/testbed run -- python benchmarks/network.py --rate 200",
        "benchmarks/testbed down",
    ],
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
        "benchmarks/testbed up --hosts 4 --rate 200mbit",
        "benchmarks/testbed run -- python benchmarks/pipelines.py",
        "benchmarks/testbed run -- python benchmarks/pipelines.py --bin-nodes 5000",
        "benchmarks/testbed down",
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
        "benchmarks/plexus_model.py",
        "benchmarks/testbed up --hosts 4 --rate 200mbit",
        "benchmarks/testbed run -- python benchmarks/network.py --rate 200 --hidden 128 --epochs 2 "
        "--only plexus cagnet-2d cagnet-3d",
        "benchmarks/testbed down",
        *(
            command
            for hosts in (8, 16)
            for command in (
                f"benchmarks/testbed up --hosts {hosts} --rate 200mbit",
                "benchmarks/testbed run -- python benchmarks/plexus_grids.py",
                "benchmarks/testbed down",
            )
        ),
    ],
    "minibatches": ["benchmarks/minibatches.py"],
    "scalegnn": [
        command
        for hosts, grids in ((2, ["1x1x2x1"]), (4, ["1x2x2x1", "2x1x2x1"]))
        for command in (
            f"benchmarks/testbed up --hosts {hosts} --rate 200mbit",
            *(f"benchmarks/testbed run -- python benchmarks/ablation.py --grid {grid}" for grid in grids),
            "benchmarks/testbed down",
        )
    ],
    "ledger": ["benchmarks/ledger.py"],
    "pool": ["benchmarks/pool.py"],
    "replay": ["benchmarks/replay.py"],
    "startup": ["benchmarks/startup.py"],
}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(COMMANDS))
    names = parser.parse_args().names or list(COMMANDS)
    if unknown := set(names) - set(COMMANDS):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(COMMANDS)}")
    root = project_root()
    settings = {"OMP_NUM_THREADS": "1", "PYTHONPATH": ".", **load_machine(root, "local").allocator}
    os.environ.update(settings)
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    folder = root / "benchmarks" / "results"
    folder.mkdir(exist_ok=True)
    for name in names:
        page = [f"# {name}", "", origin(root, settings)]
        for command in COMMANDS[name]:
            page += ["", f"    python {command}"]
            page += ["", printed] if (printed := ran(root, command)) else []
        (folder / f"{name}.md").write_text("\n".join(page) + "\n")
        print(folder / f"{name}.md", flush=True)


def origin(root: Path, settings: dict[str, str]) -> str:
    """A paragraph with the machine, the commit, the versions and the settings of the numbers below."""
    facts = provenance(root)
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    state = ", with changes" if facts["dirty"] else ""
    versions = ", ".join(f"{package} {number}" for package, number in facts["versions"].items())
    return (
        f"{facts['cores']} cores of {facts['cpu']}, {gib:.0f} GiB, load {facts['load_average']:.1f} at the start. "
        f"Commit {facts['commit'][:10]}{state}. {versions}. "
        + " ".join(f"{key}={value}" for key, value in settings.items())
        + "."
    )


def ran(root: Path, command: str) -> str:
    """The output of a benchmark: tables unchanged, anything else as a block."""
    done = subprocess.run(
        [sys.executable, *command.split()], cwd=root, stdout=subprocess.PIPE, text=True, check=True
    )
    printed = done.stdout.strip()
    if not printed:
        return ""
    return printed if "| --- |" in printed else f"```\n{printed}\n```"


if __name__ == "__main__":
    main()
