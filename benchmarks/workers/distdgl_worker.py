"""DistDGL itself: splits a graph, and trains on emulated hosts with a server and a trainer on each.

It runs in DGL's environment. `benchmarks.worker` starts it for `partition`. The testbed starts it on every host, with
the folder that has the parts, `runs.json` and the weights; each rank writes what it did there.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from dgl_worker import dgl, forward, graph_of, layers_of, main, read
from link import read_received
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

NAME, PORT = "graph", 30050
HOSTS = Path("/dev/shm/hosts.txt")
"""The addresses of all hosts, in the memory of each."""


def partition(folder: str, parts: int) -> list[int]:
    """Split the graph of a folder by METIS as DistDGL's example does; return the part of each vertex.

    The parts have about as many vertices, training vertices and edges.
    """
    arrays = read(f"{folder}/graph.npz")
    graph = graph_of(arrays, wide=True)
    graph.ndata["features"], graph.ndata["labels"] = arrays["X"], arrays["y"]
    graph.ndata["train"] = arrays["train"]
    order, _ = dgl.distributed.partition_graph(
        graph,
        NAME,
        parts,
        f"{folder}/parts",
        part_method="metis",
        balance_ntypes=graph.ndata["train"],
        balance_edges=True,
        return_mapping=True,
    )
    ranges = json.loads(Path(folder, "parts", f"{NAME}.json").read_text())["node_map"]["_N"]
    part = torch.empty(len(order), dtype=torch.int64)
    for number, (begin, end) in enumerate(ranges):
        part[order[begin:end]] = number
    return part.tolist()


# One host: a server, and a trainer that shares its memory.


def run_host(folder: Path, samplers: int) -> None:
    """Start the server of this host, then train, with some processes that sample ahead.

    Hosts do not share memory with each other. They have consecutive addresses, from the master's on.
    """
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(HOSTS.parent)], check=True)
    rank, world = os.environ["RANK"], int(os.environ["WORLD_SIZE"])
    network, _, first = os.environ["MASTER_ADDR"].rpartition(".")
    HOSTS.write_text("".join(f"{network}.{int(first) + host} {PORT}\n" for host in range(world)))
    os.environ |= {
        "DGL_DIST_MODE": "distributed",
        "DGL_IP_CONFIG": str(HOSTS),
        "DGL_CONF_PATH": str(folder / "parts" / f"{NAME}.json"),
        "DGL_NUM_SERVER": "1",
        "DGL_NUM_SAMPLER": str(samplers),
        "DGL_NUM_CLIENT": str(world * (1 + samplers)),
        "DGL_SERVER_ID": rank,
    }
    server = subprocess.Popen(
        [sys.executable, "-E", __file__, str(folder)], env={**os.environ, "DGL_ROLE": "server"}
    )
    train(folder)
    dgl.distributed.exit_client()
    server.wait()


def train(folder: Path) -> None:
    """Train all runs of a folder, and write what this rank did."""
    dgl.distributed.initialize(str(HOSTS))
    dist.init_process_group("gloo")
    graph = dgl.distributed.DistGraph(NAME, part_config=str(folder / "parts" / f"{NAME}.json"))
    targets = dgl.distributed.node_split(graph.ndata["train"], graph.get_partition_book(), force_even=True)
    results = []
    for run in json.loads((folder / "runs.json").read_text()):
        torch.manual_seed(run["seed"] + graph.rank())
        dgl.seed(run["seed"] + graph.rank())
        sage = Sage(layers_of("sage", read(str(folder / run["weights"]))))
        model = DistributedDataParallel(sage)
        optimizer = torch.optim.Adam(model.parameters(), lr=run["lr"])
        # The sampler takes the fan-out of the outermost hop first.
        sampler = dgl.dataloading.NeighborSampler(run["fanouts"][::-1], replace=run["replace"])
        own = targets
        if run["steps"]:
            own = targets[torch.randperm(len(targets))[: run["steps"] * run["batch"]]]
        loader = dgl.dataloading.DistNodeDataLoader(
            graph, own, sampler, batch_size=run["batch"], shuffle=True, drop_last=False
        )
        for number in range(run["epochs"]):
            results.append(
                {"run": run["number"], "epoch": number, **train_epoch(graph, model, optimizer, loader)}
            )
        if graph.rank() == 0:
            results[-1]["accuracy"] = find_accuracy(folder, sage.layers)
    (folder / f"rank-{graph.rank()}.json").write_text(json.dumps(results))
    dist.barrier()


class Sage(torch.nn.Module):
    """GraphSAGE with the weights of the harness."""

    def __init__(self, layers: torch.nn.ModuleList) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, blocks: list[Any], H: Tensor) -> Tensor:
        output: Tensor = forward("sage", self.layers, blocks, H)
        return output


def train_epoch(graph: Any, model: Any, optimizer: Any, loader: Any) -> dict[str, float]:
    """Train an epoch as DistDGL's example does; return its seconds, bytes, loss, and inputs that other hosts have.

    `speed` is what the examples print: the mean over steps of targets per second, where a step begins when its
    mini-batch has arrived. Up to DGL 0.8 the features are part of a mini-batch; since then, a step begins by pulling
    them, as in `speed_with_pulling`.
    """
    dist.barrier()
    batches, losses, parts = [], [], []
    arrived, begun = read_received(), perf_counter()
    waiting = begun
    with model.join():
        for inputs, seeds, blocks in loader:
            sampled = perf_counter()
            X, y = graph.ndata["features"][inputs], graph.ndata["labels"][seeds].long()
            pulled = perf_counter()
            loss = cross_entropy(model(blocks, X), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
            ended = perf_counter()
            parts.append((sampled - waiting, pulled - sampled, ended - pulled))
            batches.append((inputs, seeds))
            waiting = perf_counter()
    seconds = perf_counter() - begun
    dist.barrier()
    sampling, pulling, training = np.array(parts).T
    targets = np.array([len(seeds) for _, seeds in batches])
    book = graph.get_partition_book()
    return {
        "seconds": seconds,
        "bytes": read_received() - arrived,
        "sampling": float(sampling.sum()),
        "pulling": float(pulling.sum()),
        "training": float(training.sum()),
        "loss": float(np.mean(losses)),
        "targets": int(targets.sum()),
        "speed": float((targets / training).mean()),
        "speed_with_pulling": float((targets / (pulling + training)).mean()),
        "rows": sum(int((book.nid2partid(inputs) != graph.rank()).sum()) for inputs, _ in batches),
    }


def find_accuracy(folder: Path, layers: torch.nn.ModuleList) -> float:
    """Return the accuracy on the test vertices, with all neighbours."""
    arrays = read(f"{folder}/graph.npz")
    graph, tested = graph_of(arrays), arrays["test"]
    with torch.no_grad():
        found = forward("sage", layers, [graph] * len(layers), arrays["X"]).argmax(1)
    return float((found == arrays["y"])[tested].float().mean())


if __name__ == "__main__":
    if len(sys.argv) == 1:  # requests on stdin
        main(partition)
    elif os.environ.get("DGL_ROLE") == "server":
        dgl.distributed.initialize(str(HOSTS))
    else:
        run_host(Path(sys.argv[1]), int(sys.argv[2]))
