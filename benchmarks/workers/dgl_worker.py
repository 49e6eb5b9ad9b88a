"""Runs DGL in a separate environment, and answers requests: a line of JSON on stdin, a line on stdout.

It imports DGL, torch and numpy only. `benchmarks.worker` starts it, with OMP_NUM_THREADS threads. A request names a
function of this file in `do` and has its arguments. `products`, `epochs` and `mini_batches` read arrays from a file and
prepare calls; `turn` then times one of them, and `result` writes what one returns.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from time import perf_counter, process_time
from typing import Any

os.environ["DGLBACKEND"] = "pytorch"

import dgl
import dgl.ops
import numpy as np
import torch
from dgl.dataloading import NeighborSampler
from dgl.nn.pytorch import GATConv, GraphConv, SAGEConv
from torch import Tensor
from torch.nn.functional import cross_entropy

Arrays = Mapping[str, Tensor]
CALLS: dict[str, Callable[[], Any]] = {}


def read(file: str) -> dict[str, Tensor]:
    """Return the arrays of a file."""
    with np.load(file) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def graph_of(arrays: Arrays, *, wide: bool = False, numbered: bool = False) -> Any:
    """Return the graph whose edges end in the rows of a CSR matrix, in both orders.

    Its numbers have 32 bits, or 64 if it is `wide`: in DGL 1.1.3, samples of a graph with 32 bits shrink from draw to
    draw. With `numbered` edges, which its GATConv needs, kernels look up the number of each edge.
    """
    rowptr, col = arrays["rowptr"], arrays["col"].long()
    numbers = torch.arange(len(col)) if numbered else rowptr[:0]
    graph = dgl.graph(("csc", (rowptr, col, numbers)), num_nodes=len(rowptr) - 1)
    graph = graph if wide else graph.int()
    graph.create_formats_()
    return graph


def versions() -> str:
    """Return the versions of what runs here."""
    return f"DGL {dgl.__version__} with torch {torch.__version__}, {torch.get_num_threads()} threads"


def products(file: str) -> list[str]:
    """Prepare products with the weights of the edges, and with ones."""
    arrays = read(file)
    graph, H, val = graph_of(arrays), arrays["H"], arrays["val"][:, None]
    CALLS.clear()
    CALLS["DGL u_mul_e_sum"] = lambda: dgl.ops.u_mul_e_sum(graph, H, val)
    CALLS["DGL copy_u_sum"] = lambda: dgl.ops.copy_u_sum(graph, H)
    return list(CALLS)


def layers_of(kind: str, arrays: Arrays) -> torch.nn.ModuleList:
    """Return the convolutions of a model with the weights of the harness."""
    layers = torch.nn.ModuleList()
    while f"convolution{len(layers)}" in arrays:
        number = len(layers)
        W = arrays[f"convolution{number}"]
        with torch.no_grad():
            if kind == "gcn":
                layer = GraphConv(*W.shape, norm="both", bias=False)
                layer.weight.copy_(W)
            elif kind == "sage":
                layer = SAGEConv(*W.shape, "mean", bias=False)
                layer.fc_neigh.weight.copy_(W.T)
                layer.fc_self.weight.copy_(arrays[f"root{number}"].T)
            else:
                heads = int(arrays["heads"])
                layer = GATConv(W.shape[0], W.shape[1] // heads, heads, bias=False)
                layer.fc.weight.copy_(W.T)
                ends = arrays[f"attention{number}"].view(2, 1, heads, -1)
                layer.attn_r.copy_(ends[0])
                layer.attn_l.copy_(ends[1])
        layers.append(layer)
    return layers


def forward(kind: str, layers: torch.nn.ModuleList, graphs: list[Any], H: Tensor) -> Tensor:
    """Return the output of a model; layer i runs on graph i."""
    for number, (layer, graph) in enumerate(zip(layers, graphs, strict=True)):
        last = number + 1 == len(layers)
        H = layer(graph, H)
        if kind == "gat":
            H = H.mean(1) if last else H.flatten(1)
        H = H if last else H.relu()
    return H


def epochs(file: str, kind: str) -> list[str]:
    """Prepare epochs on the full graph."""
    arrays = read(file)
    graph = graph_of(arrays, numbered=kind == "gat")
    X, y, counted = arrays["X"], arrays["y"], arrays["counted"]
    layers = layers_of(kind, arrays)
    optimizer = torch.optim.Adam(layers.parameters(), lr=float(arrays["lr"]))

    def epoch() -> float:
        H = forward(kind, layers, [graph] * len(layers), X)
        loss = cross_entropy(H[counted], y[counted])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    CALLS.clear()
    CALLS["epoch"] = epoch
    return list(CALLS)


def mini_batches(file: str, fanout: int) -> list[str]:
    """Prepare the draws of an epoch of mini-batches, with and without the rows of features, and the epoch.

    With the rows, blocks are in the formats of training: the inputs of the first one have no gradients.
    """
    arrays = read(file)
    graph, X, y, order = graph_of(arrays, wide=True), arrays["X"], arrays["y"], arrays["order"]
    layers = layers_of("sage", arrays)
    sampler = NeighborSampler([fanout] * len(layers))
    optimizer = torch.optim.Adam(layers.parameters(), lr=float(arrays["lr"]))
    seeds = order.tensor_split(int(arrays["steps"]))

    def draw() -> list[list[int]]:
        """Return the rows, the edges and the inputs of the layer next to the output, of each mini-batch."""
        drawn = [sampler.sample(graph, each)[2] for each in seeds]
        return [[count_of_last(blocks), blocks[0].num_src_nodes()] for blocks in drawn]

    def count_of_last(blocks: list[Any]) -> int:
        degrees = graph.in_degrees(blocks[-1].dstdata[dgl.NID]).clamp(max=fanout)
        assert torch.equal(blocks[-1].in_degrees(), degrees), "a draw without all neighbours"
        return int(blocks[-1].num_edges())

    def draw_only() -> None:
        for each in seeds:
            sampler.sample(graph, each)

    def draw_and_gather() -> None:
        for each in seeds:
            inputs, _, blocks = sampler.sample(graph, each)
            X.index_select(0, inputs)
            blocks[0].formats("csc").create_formats_()
            for block in blocks[1:]:
                block.create_formats_()

    def epoch() -> None:
        for each in seeds:
            inputs, outputs, blocks = sampler.sample(graph, each)
            H = forward("sage", layers, blocks, X.index_select(0, inputs))
            loss = cross_entropy(H, y.index_select(0, outputs))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()

    CALLS.clear()
    CALLS.update({"counts": draw, "draws": draw_only, "draws and inputs": draw_and_gather, "epoch": epoch})
    return list(CALLS)


def turn(call: str, repeat: int) -> list[float]:
    """Return the wall and CPU seconds of a call, the mean of some."""
    wall, cpu = perf_counter(), process_time()
    for _ in range(repeat):
        CALLS[call]()
    return [(perf_counter() - wall) / repeat, (process_time() - cpu) / repeat]


def result(call: str, file: str) -> None:
    """Write what a call returns."""
    value = CALLS[call]()
    np.save(file, value.numpy() if isinstance(value, Tensor) else np.array(value))


def main(*known: Callable[..., Any]) -> None:
    """Answer requests for functions until stdin ends. What libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    named = {each.__name__: each for each in known}
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(named[request.pop("do")](**request)), file=answers, flush=True)


if __name__ == "__main__":
    main(versions, products, epochs, mini_batches, turn, result)
