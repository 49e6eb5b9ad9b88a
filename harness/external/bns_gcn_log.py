"""Logs of BNS-GCN (github.com/GATECH-EIC/BNS-GCN, revision b4a48bd), and the lines and models that PipeGCN shares.

All processes write to one log, so a line may have two reports. Anything before a report on its line (ranks by
`srun -l`, times) is ignored.
"""

import re
from typing import Any

from harness.external.log_options import Options, parse_namespaces
from harness.external.program import (
    BIAS,
    EXCHANGE,
    FULL_GRAPH,
    NEEDS_DATASET,
    NEEDS_RANKS,
    NUMBER,
    REDUCTION,
    Accuracy,
    Beyond,
    EpochReport,
    LoggedRun,
    Program,
    ProgramLog,
    map_named,
)
from harness.ledger import Amounts

EPOCH = re.compile(
    rf"Process (\d+) \| Epoch (\d+) \| Time\(s\) {NUMBER} "
    rf"\| Comm\(s\) {NUMBER} \| Reduce\(s\) {NUMBER} \| Loss {NUMBER}"
)
VALID = re.compile(r"Epoch (\d+) \| (?:Validation )?Accuracy ([\d.]+)%(?: \| Test Accuracy ([\d.]+)%)?")
TEST = re.compile(r"Test Result \| Accuracy ([\d.]+)%")
MEMORY = re.compile(r"\(rank (\d+)\) memory stats: current [\d.]+MB, peak ([\d.]+)MB")
REPORT = "Process 000 | Epoch 00009 | Time(s) ... | Comm(s) ... | Reduce(s) ... | Loss ..."

KEYS = {
    "dataset": "dataset.name",
    "partition_method": "dataset.partition",
    "n_partitions": "ranks",
    "n_layers": "model.layers",
    "n_hidden": "model.hidden",
    "dropout": "model.dropout",
    "n_epochs": "training.epochs",
    "lr": "training.lr",
    "weight_decay": "training.weight_decay",
    "seed": "seed",
    "sampling_rate": "strategy.params.p",
    "use_pp": "strategy.params.precompute",
}
"""The key of a spec for each option that has one."""
MODELS = {"graphsage": "sage"}
"""The models that have another name here."""
FIXED: Options = {
    **FULL_GRAPH,
    "dataset.permutation": "none",
    "strategy.params.wire": "full",
    "training.features": False,
    "protocol": "corrected",
    "precision": "float32",
}
"""The keys that both programs fix, whatever their options are."""


def read_lines(log: ProgramLog, mark: str) -> LoggedRun:
    """Read a log whose options contain `mark`, which only one of the two programs has."""
    printed = parse_namespaces(log.text)
    options = max(printed, key=len, default={})
    nodes = [each for each in printed if mark in each]
    draws_seeds = len({each.get("seed") for each in nodes}) > 1  # without --fix-seed each node has its own
    test = TEST.search(log.text)
    return LoggedRun(
        options,
        _read_reports(log.text),
        _read_accuracies(log.text),
        float(test[1]) / 100 if test else None,
        device_peaks={int(rank): int(float(peak) * 2**20) for rank, peak in MEMORY.findall(log.text)},
        nodes=[
            {key: value for key, value in each.items() if key in KEYS and key != "seed"} for each in nodes
        ],
        open_keys=frozenset({"seed"} if draws_seeds else ()),
        mismatch=f"its options lack {mark}" if options and mark not in options else "",
        has_begun=bool(options),
    )


def _read_reports(text: str) -> list[EpochReport]:
    """Return the reports. Their times are means over the epochs so far without the first five."""
    reports = []
    for rank, epoch, *numbers in EPOCH.findall(text):
        seconds, exchanging, reducing, loss = map(float, numbers)
        parts = {EXCHANGE: Amounts(seconds=exchanging), REDUCTION: Amounts(seconds=reducing)}
        reports.append(EpochReport(int(rank), int(epoch), seconds, loss, parts))
    return sorted(reports, key=lambda report: report[:2])


def _read_accuracies(text: str) -> list[Accuracy]:
    printed = []
    for epoch, valid, test in VALID.findall(text):
        printed.append(Accuracy(int(epoch), "valid", float(valid) / 100))
        printed += [Accuracy(int(epoch), "test", float(test) / 100)] if test else []
    return printed


def map_common_keys(options: Options) -> dict[str, Any]:
    """Return the keys that both programs fix, and those that follow from a single option each."""
    keys = {**FIXED, **map_named(options, KEYS)}
    if "model" in options:
        keys["model.kind"] = MODELS.get(options["model"], options["model"])
    if options.get("model") == "gat" and "heads" in options:
        keys["model.heads"] = options["heads"]
    if "norm" in options:
        keys["model.norm"] = False  # has no value if the norm is beyond a spec
    if options.get("eval") is False:
        keys["training.evaluate_every"] = 0
    elif options.get("eval") and "log_every" in options:
        keys["training.evaluate_every"] = options["log_every"]
    return keys


def _map_bns_gcn(options: Options) -> dict[str, Any]:
    """Return the keys of a run of BNS-GCN, which only runs with --use-pp."""
    strategy = {
        "strategy.name": "bns-gcn",
        "strategy.params.overlap": False,
        "strategy.params.precompute": True,
    }
    return {**strategy, **map_common_keys(options)}


# What a spec cannot express.

NORMS = {
    "layer": "layer normalisation, with means and biases; ours is RMSNorm",
    "batch": "batch normalisation over all training vertices; ours is RMSNorm",
}


def _describe_norm(options: Options) -> str | None:
    norm = options.get("norm")
    return None if norm in (None, "none") else NORMS.get(norm, f"{norm}")


def _describe_loops(options: Options) -> str | None:
    is_sage = options.get("model") == "graphsage"
    return "the mean over the neighbours includes the vertex itself; ours does not" if is_sage else None


def _describe_objective(options: Options) -> str | None:
    if options.get("partition_method") != "metis" or options.get("partition_obj", "vol") == "cut":
        return None
    return "METIS minimised the number of boundary rows (objective vol); our metis minimises cut edges"


def _describe_dropout(options: Options) -> str | None:
    if not options.get("dropout"):
        return None
    dropped = "features and attention weights" if options.get("model") == "gat" else "features"
    return f"drops elements of the {dropped} too; ours only of the outputs of hidden layers"


def _describe_heads(options: Options) -> str | None:
    heads = options.get("heads", 1) if options.get("model") == "gat" else 1
    return f"{heads} heads, averaged in every layer" if heads != 1 else None


def _describe_linear(options: Options) -> str | None:
    return f"its last {options['n_linear']} layers have no A" if options.get("n_linear") else None


COMMON_BEYOND = [
    Beyond("norm", _describe_norm, "model.norm"),
    Beyond("n_linear", _describe_linear, "model.layers"),
    Beyond(
        "inductive",
        lambda options: (
            "trained on the graph of the training vertices alone" if options.get("inductive") else None
        ),
    ),
    Beyond("self loops", _describe_loops),
    BIAS,
    Beyond("dropout", _describe_dropout),
    Beyond("partition_obj", _describe_objective, "dataset.partition"),
    Beyond(
        "reducer",
        lambda _: "threads sum the gradients and may start before a gradient exists, so replicas can differ",
    ),
]
"""What runs of both programs may have."""


def _describe_degrees(options: Options) -> str | None:
    wrong = "divides boundary rows by the degrees of other vertices (an error in b4a48bd), so its loss is of another A"
    return wrong if options.get("model") == "gcn" else None


def _describe_sample(options: Options) -> str | None:
    rate = options.get("sampling_rate", 1)
    if rate in (0, 1):
        return None
    scaled = "; attention scales the rows by 1/p" if options.get("model") == "gat" else ""
    return f"draws p b of the b rows of a boundary, rounded down; ours draws p b on average{scaled}"


BNS_GCN = Program(
    "BNS-GCN",
    REPORT,
    lambda log: read_lines(log, "sampling_rate"),
    _map_bns_gcn,
    [
        *COMMON_BEYOND,
        Beyond("heads", _describe_heads),
        Beyond("degrees", _describe_degrees),
        Beyond("sampling_rate", _describe_sample),
    ],
    {**NEEDS_DATASET, **NEEDS_RANKS},
    times="mean",
    all_report=True,
)
