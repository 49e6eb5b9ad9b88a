"""The pages of benchmarks/results: the commands of each, and how they are recorded.

A page has the commit, machine and settings, and grows by the output of each command. If recording stops, the next one
on the same commit continues with the commands that are missing.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.environment import describe_environment, version_of_code
from benchmarks.registry import SPEED_LOST
from harness.base.validation import unknown_name_error
from harness.runtime.provenance import collect_provenance
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
COMPOSE_GRAPHS = ("reddit-shape", "rmat-17", "amazon-shape", "coauthor-cs --hidden 32")
RATES = (200, 1000)
LINKS = ["--hosts 4 --rate 200mbit", "--hosts 8 --rate 200mbit", "--hosts 4 --rate 1000mbit"]
PAGES = {
    "prediction": [
        "prediction.products",
        "prediction.loopback --ranks 4",
        "prediction.loopback --ranks 8",
        "prediction.links --hosts 4 --rate 100mbit --epochs 2",
        "prediction.links --hosts 4 --rate 200mbit",
        "prediction.links --hosts 8 --rate 200mbit --epochs 2",
        "prediction.links --hosts 8 --rate 400mbit --epochs 2",
        "prediction.links --hosts 4 --rate 400mbit --dataset amazon-shape --epochs 1",
        "prediction.memory --dataset ogbn-products@1/64",
    ],
    # Two meshes and two rates, with which no term of a prediction was found or fitted.
    "unseen": [
        "prediction.links --hosts 4 --rate 300mbit --dataset europe-osm@1/4096 --epochs 2",
        "prediction.links --hosts 8 --rate 250mbit --dataset netherlands-osm@1/128 --epochs 2",
    ],
    "messages": ["prediction.messages"],
    "claims": ["harness claims --twins --all --predictions workflows/predictions"],
    "findings": [
        f"findings.{part}" for part in ("balance", "model", "dimensions", "settings", "swaps", "edges")
    ],
    "trust": ["trust"],
    # Of the page `pipelines`.
    "gain": ["findings.gain"],
    "received": ["received.by-strategy"],
    "held-out": ["held_out.draw"],
    # More than an hour, so it has its own page.
    "comparison-4-hosts": ["comparison.measured --dataset coauthor-cs --keep-epochs"],
    "comparison-predicted": ["comparison.predicted"],
    "comparison": ["comparison.table"],
    "bench": ["bench"],
    "competitors": [
        "competitors.mini-batches --turns 7",
        "competitors.products --turns 7",
        "competitors.epochs --turns 7 --graphs sbm-4096",
        "competitors.epochs --turns 7 --graphs rmat-17 --models gcn sage",
    ],
    "authors": [
        f"authors --only {name} --graphs cora" for name in ("pipegcn", "bns-gcn", "sancus", "plexus")
    ],
    "cagnet": ["cagnet.words", "cagnet.memory"],
    "distdgl": ["distdgl.epochs", "distdgl.depth"],
    "distdgl-samplers": ["distdgl.epochs --hosts 4 --samplers 1"],
    "shapes": [f"shapes --numbers {number}" for number in range(1, 11)],
    "shapes-again": ["shapes --numbers 7", "shapes --numbers 8"],
    "epoch": [
        "epoch.serial --dataset sbm-4096",
        "epoch.serial --dataset rmat-17 --turns 7",
        "epoch.parallel --dataset sbm-4096 --ranks 2",
        "epoch.parallel --dataset rmat-17 --ranks 4 --turns 7",
        "epoch.recording --dataset rmat-17 --ranks 2",
        "epoch.kernels --dataset rmat-17 --ranks 4 --turns 7 cagnet-1d cagnet-1.5d@2x2 cagnet-2d@2x2 "
        "cagnet-2d:weight_gradient=T@2x2 cagnet-3d@2x1x2 cagnet-sa-1d cagnet-sa-1.5d@2x2 plexus@2x2x1",
    ],
    "blocks": [
        "blocks.kernels cagnet-1d@4 cagnet-1.5d@2x2 cagnet-2d@2x2 cagnet-2d:weight_gradient=T@2x2 cagnet-3d@2x1x2 "
        "plexus@2x2x1",
        "blocks.kernels --turns 5 cagnet-1d@16 cagnet-1.5d@4x4 cagnet-2d@4x4 cagnet-3d@4x2x2",
        "blocks.kernels --turns 5 --dataset ogbn-products@1/16 cagnet-1d@4 cagnet-2d@2x2 cagnet-3d@2x1x2 plexus@2x2x1",
    ],
    "spmm": ["spmm"],
    "loops": ["loops"],
    "sampling": ["sampling --scale 20 --bulk 1 2 4 8 16 32 64", "sampling.messages --hosts 4 --rate 200mbit"],
    "collectives": ["collectives", "collectives.queue"],
    "links": [f"collectives.links --hosts {hosts} --rate 200mbit" for hosts in (4, 8)],
    "network": ["network --hosts 4 --rate 200mbit"],
    "compose": [
        *(f"compose.search --rate {rate} --dataset {graph}" for rate in RATES for graph in COMPOSE_GRAPHS),
        *(f"compose.pairs {links} --dataset {graph}" for links in LINKS for graph in COMPOSE_GRAPHS),
    ],
    "inexact": [f"compose.inexact {links} --dataset rmat-17" for links in LINKS],
    "wires": ["network.wires --hosts 4 --rate 10gbit", "network.wires --hosts 4 --rate 200mbit"],
    "slope": ["network.slope"],
    "batch": ["launching.batch --on-slurm --runs 100"],
    "schemes": [
        f"epoch.parallel --dataset {dataset} --ranks {ranks} --strategy {name} --grid {grid}{turns}"
        for dataset, turns in (("rmat-17", " --turns 5"), ("sbm-4096", ""))
        for name, ranks, grid in SCHEMES
    ],
    "calls": ["epoch.calls cagnet-1d cagnet-1.5d@2x2 cagnet-2d@2x2 cagnet-3d@2x1x2 cagnet-sa-1d plexus"],
    "partitions": ["graphs.partitions"],
    "twins": ["twins.boundaries"],
    "caches": ["sampling.caches"],
    "pipelines": [
        "network.pipelines --hosts 4 --rate 200mbit",
        "network.pipelines --hosts 4 --rate 200mbit --bin-nodes 5000",
        # Two ranks have a core each, and their words travel about as long as they compute.
        "network.pipelines --hosts 2 --rate 400mbit --bin-nodes 5000",
    ],
    "building": [
        "graphs.build-rmat --scale 22",
        "graphs.build-text --lines 20000000",
        "graphs.build-twins ogbn-papers100m 1/64 1/16 1/4 1",
    ],
    "scale": ["scale"],
    "plexus": [
        "graphs.loading --dataset rmat-21 --grid 2x2x2",
        "plexus.measured-model",
        "plexus.published-model",
        "plexus.grids --hosts 8 --rate 200mbit",
        "plexus.grids --hosts 16 --rate 200mbit",
    ],
    "local-products": ["plexus.local-products"],
    "minibatches": ["minibatches"],
    "staleness": ["accuracy.staleness"],
    "samplers": ["accuracy.samplers"],
    "rounding": ["accuracy.rounding"],
    "scalegnn": [
        "network.ablation --hosts 2 --rate 200mbit --grid 1x1x2x1",
        "network.ablation --hosts 4 --rate 200mbit --grid 1x2x2x1",
        "network.ablation --hosts 4 --rate 200mbit --grid 2x1x2x1",
        # Sampling is a quarter of the epoch.
        "network.ablation --hosts 2 --rate 10gbit --grid 1x1x2x1 --hidden 8 --batch 65536 --epochs 7",
    ],
    "ledger": ["overhead.ledger"],
    "pool": ["launching.pool"],
    "replay": ["overhead.replay"],
    "startup": ["launching.startup", "launching.commands"],
    "meeting": ["launching.rendezvous", "launching.file-calls"],
    "studies": ["overhead.studies"],
    "mutants": ["mutants --full"],
}
"""The commands of each page, without `python -m benchmarks`; one of the harness begins with its name."""
PROGRAMS = {
    "competitors": ["MKL_RT", "DGL_PYTHON"],
    "cagnet": ["AUTHORS_CAGNET"],
    "local-products": ["MKL_RT"],
    "distdgl": ["DGL_PYTHON"],
    "distdgl-samplers": ["DGL_PYTHON"],
    "authors": ["AUTHORS_PIPEGCN", "AUTHORS_BNS_GCN", "AUTHORS_SANCUS", "AUTHORS_PLEXUS"],
}
"""The variables that name the programs that a page compares with."""


def record_pages(names: list[str]) -> int:
    """Record pages, all if none is named; return the exit code."""
    if unknown := sorted(set(names) - set(PAGES)):
        print(unknown_name_error("page", unknown[0], list(PAGES)), file=sys.stderr)
        return 2
    unnamed = {name: missing for name in names or PAGES if (missing := list_unnamed_programs(name))}
    for name, missing in unnamed.items():
        print(f"{name} compares with other programs: set {', '.join(missing)} to record it.", file=sys.stderr)
    if names and unnamed:
        return 2
    code = 0
    for name in [each for each in names or PAGES if each not in unnamed]:
        page = find_root() / "benchmarks" / "results" / f"{name}.md"
        code = record_page(page, PAGES[name])
        print(page, flush=True)
        if code:
            break
    return code


def list_unnamed_programs(page: str) -> list[str]:
    """Return the variables that a page needs and that are not set."""
    return [each for each in PROGRAMS.get(page, ()) if not os.environ.get(each)]


def record_page(page: Path, commands: list[str]) -> int:
    """Run the commands that an unfinished page of this code lacks, then put the page in its place."""
    root = find_root()
    unfinished = page.with_suffix(".md.part")
    page.parent.mkdir(exist_ok=True)
    text = unfinished.read_text() if unfinished.exists() else ""
    if version_of_code(root, collect_provenance(root)["commit"]) not in text:
        text = f"# {page.stem}\n\n{describe_environment()}\n"
    code = 0
    for command in commands[text.count("\n    python ") :]:
        words = f"-m {command}" if command.startswith("harness ") else f"-m benchmarks {command}"
        printed, code = run_command(words, page.parent)
        if code not in (0, SPEED_LOST):
            print(
                f"python {words} failed with exit code {code}. Record {page.stem} again to continue from here."
            )
            return code
        text += f"\n    python {words}\n" + (f"\n{printed}\n" if printed else "")
        unfinished.write_text(text)
    unfinished.replace(page)
    return code


def run_command(words: str, results: Path) -> tuple[str, int]:
    """Return what a command prints, and its exit code; keep its figures as SVG."""
    with TemporaryDirectory() as folder:
        out = [] if words.startswith("-m harness ") else ["--out", folder]
        command = [sys.executable, *words.split(), *out]
        done = subprocess.run(command, cwd=find_root(), stdout=subprocess.PIPE, text=True)
        for figure in Path(folder).glob("*.svg"):
            shutil.copy(figure, results)
    return done.stdout.strip(), done.returncode
