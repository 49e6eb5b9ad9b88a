"""The parts of benchmarks/gpu.py in the order of their worth: their questions, tables, items and limits."""

from collections.abc import Iterator
from contextlib import suppress
from time import monotonic

from benchmarks.epoch import PYG
from benchmarks.gpu_common import Part, Row, Size, asked_of, full_graph_strategies, strategies
from benchmarks.gpu_laws import (
    BASICS,
    NCCL_CALLS,
    ask_basics,
    ask_cuda_graphs,
    ask_kit,
    ask_nccl,
    ask_rules,
    ask_waits,
    ask_worlds,
    rule_names,
)
from benchmarks.gpu_measurements import (
    GRAPHS,
    PIECES,
    TYPES,
    WIDTHS,
    ask_card,
    ask_epochs,
    ask_peaks,
    ask_pieces,
    ask_products,
    ask_samples,
    ask_strategies,
    epoch_items,
    piece_items,
)
from benchmarks.gpu_profile import MODELS, SAMPLERS, ask_profile
from benchmarks.measuring import spec_of
from harness.base.errors import UserError
from harness.kernels.spmm import PRODUCT_KERNELS
from harness.runtime.open_run import open_run
from harness.spec.root import find_root

# Data: the stores and partitions that other parts open, built on the CPU while laws have the GPU.


def data_items(size: Size) -> list[str]:
    return [*dict.fromkeys((size.dataset, *size.epochs)), "partitions"]


def ask_data(item: str, size: Size) -> Iterator[Row]:
    begun = monotonic()
    if item == "partitions":
        for name in strategies():
            with suppress(UserError):  # a strategy that refuses this graph needs none
                open_run(find_root(), spec_of(asked_of(name, size)))
    else:
        spec_of({"strategy": "serial", "dataset": item, "ranks": 1})
    yield item, f"{monotonic() - begun:.1f}"


KIT_FIRST = ("compose", "plexus", "g3", "scalegnn", "cagnet-3d", "cagnet-2d", "distgnn", "bulk-ladies", "rdm")
"""The strategies whose laws take longest begin first."""
WORLDS_FIRST = (
    "cagnet-1d",
    "bns-gcn",
    "plexus",
    "g3",
    "scalegnn",
    "distdgl",
    "cagnet-sa-1d",
    "adaqp",
    "sancus",
)

PARTS: dict[str, Part] = {
    "data": Part(
        "How long does it take to build the graphs?",
        ("graph", "seconds"),
        data_items,
        ask_data,
        share=0.7,
        each=300,
    ),
    "basics": Part(
        "Does the software work with this GPU?",
        ("what", "answer"),
        lambda _: list(BASICS),
        ask_basics,
        share=0.5,
        each=120,
    ),
    "nccl": Part(
        "Do the project's collectives work over NCCL, in a world of one?",
        ("call", "result"),
        lambda _: list(NCCL_CALLS),
        ask_nccl,
        share=0.5,
    ),
    "rules": Part(
        "Do the fake GPUs refuse what this GPU refuses, and wait where it waits?",
        ("action", "the fake GPU", "this GPU", "agree"),
        rule_names,
        ask_rules,
        share=0.5,
    ),
    "kit": Part(
        "Do the laws of every strategy hold over NCCL, with at most a rank for each GPU?",
        ("strategy", "ranks at most", "laws", "broken"),
        lambda _: strategies(*KIT_FIRST),
        ask_kit,
        share=0.5,
        each=120,
        processes=True,
    ),
    "worlds": Part(
        "Do they hold for several ranks that share one GPU, with messages carried by gloo?",
        ("strategy", "ranks at most", "laws", "broken"),
        lambda _: strategies(*WORLDS_FIRST),
        ask_worlds,
        share=0.55,
        each=120,
        processes=True,
    ),
    "waits": Part(
        "What makes the host wait in an epoch? One call is the ledger's, after the epoch.",
        ("strategy", "waits", "where", "calls that wait"),
        lambda _: strategies("serial"),
        ask_waits,
        share=0.55,
    ),
    "cuda-graphs": Part(
        "Does training with a CUDA graph have the same bits as without?",
        (
            *("strategy", "epoch, ms", "replayed, ms", "same losses", "same weights", "same ledger"),
            *("difference of losses", "not deterministic"),
        ),
        full_graph_strategies,
        ask_cuda_graphs,
        share=0.55,
    ),
    "peaks": Part(
        "How fast are the simplest operations?",
        ("operation", "speed"),
        lambda _: ["copy", "launch", "float32", "bfloat16", "mask"],
        ask_peaks,
        share=0.9,
        shared=False,
    ),
    "products": Part(
        "How fast is a product, compared with its bounds and with other kernels? Above 1, ours is faster.",
        (
            *("graph", "type", "f", "ms", "GFLOP/s", "of the bytes at least", "of the bytes gathered"),
            *(f"{name} / ours" for name in (*PRODUCT_KERNELS, "PyG")),
            "chosen",
        ),
        lambda _: [f"{kind} {dtype} {width}" for kind in GRAPHS for dtype in TYPES for width in WIDTHS],
        ask_products,
        share=0.75,
        shared=False,
    ),
    "pieces": Part(
        "How long may a piece of a long row be? Times of a product by Triton in ms, by the entries of a piece.",
        ("graph", "type", "f", *map(str, PIECES)),
        piece_items,
        ask_pieces,
        share=0.8,
        shared=False,
    ),
    "epochs": Part(
        "Is a serial epoch as fast as PyG's GCNConv? Above 1, ours is faster.",
        (
            *("dataset", "hidden", "serial, ms", "with a CUDA graph / ours"),
            *(f"{name} / ours" for name in PYG),
            "peak of all, MB",
        ),
        epoch_items,
        ask_epochs,
        stores=True,
        share=0.9,
        each=90,
        shared=False,
    ),
    "card": Part(
        "What are the constants of this GPU's card?",
        ("constant", "value", "within", "source"),
        lambda _: ["card"],
        ask_card,
        share=0.95,
        each=150,
        shared=False,
    ),
    "strategies": Part(
        "What does an epoch of each strategy take on one rank?",
        (
            "strategy",
            "epoch, ms",
            "over serial",
            "predicted / measured",
            "sampling",
            "steps",
            "peak, MB",
            "held all the time, MB",
        ),
        lambda _: strategies("serial"),
        ask_strategies,
        stores=True,
        share=1.0,
        each=60,
        shared=False,
    ),
    "profile": Part(
        "Where does the time of an epoch go, measured with torch's profiler?",
        ("training", "operation", "on", "calls", "ms"),
        lambda _: [*MODELS, *SAMPLERS],
        ask_profile,
        stores=True,
        share=1.0,
        shared=False,
    ),
    "samples": Part(
        "How fast is an induced subgraph on the device? Above 1, ours is faster.",
        (
            *("graph", "sampled", "ours, ms", "with its transpose / ours", "tensor operations / ours"),
            *("PyG / ours", "scipy on the host / ours"),
        ),
        lambda _: ["1/8", "1/64"],
        ask_samples,
        share=1.0,
        shared=False,
    ),
}
"""The parts in the order of their worth: laws, then measurements."""
