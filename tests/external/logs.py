"""Logs as five programs write them, to the letter of their format strings, of runs that nobody ran."""

import statistics
from collections.abc import Sequence
from typing import Any

BNS = {
    "backend": "gloo",
    "dataset": "reddit",
    "dropout": 0.5,
    "eval": True,
    "fix_seed": False,
    "heads": 1,
    "inductive": False,
    "log_every": 10,
    "lr": 0.01,
    "model": "graphsage",
    "n_epochs": 30,
    "n_hidden": 256,
    "n_layers": 4,
    "n_linear": 0,
    "n_partitions": 2,
    "norm": "layer",
    "partition_method": "metis",
    "partition_obj": "vol",
    "parts_per_node": 10,
    "sampling_rate": 0.1,
    "seed": 7,
    "use_pp": True,
    "weight_decay": 0,
}
PIPE = {key: value for key, value in BNS.items() if key != "sampling_rate"} | {
    "corr_momentum": 0.95,
    "enable_pipeline": True,
    "feat_corr": True,
    "grad_corr": False,
}


def options(told: dict[str, Any]) -> str:
    """As argparse prints them."""
    return f"Namespace({', '.join(f'{key}={value!r}' for key, value in told.items())})\n"


def unquoted(told: dict[str, Any]) -> str:
    """The same by a program that writes no quotes, so that a text is no literal."""
    return f"Namespace({', '.join(f'{key}={value}' for key, value in told.items())})\n"


def epoch(
    rank: int, number: int, seconds: float, comm: float = 0.2, reduce: float = 0.01, loss: float | None = None
) -> str:
    loss = 1 / (number + 1) + rank if loss is None else loss
    return (
        f"Process {rank:03d} | Epoch {number:05d} | Time(s) {seconds:.4f} | Comm(s) {comm:.4f} | "
        f"Reduce(s) {reduce:.4f} | Loss {loss:.4f}"
    )


def whole(told: dict[str, Any] | None, ranks: int = 2, epochs: int = 30) -> str:
    """A run that went well; the lines of two processes stand on one where they were written at once."""
    text = "Using backend: pytorch\n" + (options(told) if told else "")
    for number in range(9, epochs, 10):
        text += (
            "".join(epoch(rank, number, 0.3 + 0.01 * rank + number / 1000) for rank in range(ranks)) + "\n"
        )
        text += f"Epoch {number:05d} | Accuracy {90 + number / 10:.2f}%\n"
    for rank in range(ranks):
        text += (
            f"(rank {rank}) memory stats: current 562.96MB, peak {1997.5 + rank:.2f}MB, reserved 2320.00MB\n"
        )
    return text + "model saved\nMax Validation Accuracy 93.00%\nTest Result | Accuracy 97.21%\n"


# Plexus.


def plexus_command(grid: tuple[int, int, int], *more: str, epochs: int = 3) -> str:
    """The command that its scripts echo."""
    sizes = " ".join(f"--G_intra_{axis} {size}" for axis, size in zip("rcd", grid, strict=True))
    return f"srun -n 4 ./get_rank.sh python -u train.py {sizes} --num_epochs {epochs} {' '.join(more)}\n"


def timer(level: int, name: str, slowest: float, mean: float) -> str:
    """A line of the tree of timers: the representation of a text, in colour, indented by tabs."""
    text = (
        f"{name} | Max Time: {slowest:.3f} ms | Avg Time: {mean:.3f} ms | "
        f"Load Imbalance: {slowest / mean if mean else float('nan'):.3f}"
    )
    colour = ("\033[95m", "\033[92m", "\033[96m", "\033[91m")[level]
    return "\t" * level + f"|--{colour} {text!r} \033[0m\n"


def plexus_epoch(
    epoch: int, slowest: float, collectives: bool = True, aggregation: str = "AGG = A * H"
) -> str:
    tree = timer(0, f"epoch {epoch}", slowest, slowest - 1) + timer(1, "gcn conv fwd", 41, 40)
    tree += timer(2, "all-reduce (x)", 11, 10) if collectives else ""
    tree += timer(2, aggregation, 16, 15) + timer(2, "OUT = AGG * W", 6, 5)
    tree += (
        timer(1, "cross entropy fwd", 3, 2)
        + timer(1, "cross entropy bwd", 2, 1)
        + timer(1, "gcn conv bwd", 31, 30)
    )
    tree += timer(2, "GRAD_H = A.T * GRAD_AGG", 9, 8)
    return tree + "\n"


def plexus(
    losses: Sequence[float] = (3.5, 3.25, 3.0), timed: Sequence[int] = (1, 2), command: str = "", **more: Any
) -> str:
    """A run: the losses, and the tree of timers before the loss of the last epoch."""
    text = command
    for epoch, loss in enumerate(losses):
        if timed and epoch == timed[-1]:
            text += "".join(plexus_epoch(each, 100 + 10 * each, **more) for each in timed)
        text += f"Epoch: {epoch:03d}, Train Loss: {loss:.4f}\n"
    return text


# SANCUS.


def sancus_line(rank: int, *words: Any) -> str:
    return f"10:15:32.{rank:06d} [{rank:1d}] " + " ".join(map(str, words)) + "\n"


def sancus(
    losses: Sequence[float] = tuple(2 - epoch / 20 for epoch in range(12)),
    ranks: int = 2,
    cached: bool = False,
    graph: str = "reddit",
    finished: bool = True,
) -> str:
    """A run. With caches, the first layer broadcasts once, and the second in all epochs."""
    text = "".join(
        sancus_line(rank, "proc begin:", f"<DistEnv {rank}/{ranks} gloo>") for rank in range(ranks)
    )
    for rank in range(ranks):
        shown = f"<COO Graph: {graph}, |V|: 232965, |E|: 114615892, masks: 153431,23831,55703>"
        text += sancus_line(rank, "graph loaded", f"{shown}<Local: {rank}, |V|: 116483, |E|: 57307946>")
    for epoch, loss in enumerate(losses):
        text += sancus_line(0, f"Epoch {epoch:05d} | Loss {loss:.4f}")
        if epoch % 10 == 0 or epoch == len(losses) - 1:
            text += sancus_line(
                0, f"Epoch: {epoch:03d}, Train: 0.9000, Val: 0.8000, Test: {0.7 + epoch / 100:.4f}"
            )
    epochs = len(losses)
    timers = {"broadcast": (3.0, 4 * epochs), "spmm": (1.2, 4 * epochs), "mm": (0.6, 4 * epochs)}
    for layer in ("L1", "L2"):
        for rank in range(ranks):
            sent = 1 if cached and layer == "L1" else epochs
            timers |= {
                f"broadcast Forward{layer} {rank}": (0.5, sent),
                f"broadcast Backward{layer} {rank}": (0.5, epochs),
            }
    timers |= {"all_reduce": (0.24, 2 * epochs), "epoch": (6.0, epochs)}
    if not finished:
        return text
    rows = [
        f"{seconds:6.2f}s {statistics.stdev([seconds, seconds + 0.1]):6.2f}s {calls:5d} {name}"
        for name, (seconds, calls) in timers.items()
    ]
    return text + sancus_line(0, "\ntimer summary:\n" + "\n".join(rows))


# AdaQP.


def adaqp_times(mode: str, total: float) -> str:
    quantizes = mode in ("AdaQP", "AdaQP-q")
    start = f"Worker 0 | Total Time {total:.4f}s | Comm Time 0.5000s | Quant Time {0.1 * quantizes:.4f}s | "
    if mode in ("Vanilla", "AdaQP-q"):
        return f"{start}Agg Time 0.2000s | Reduce Time 0.0500s"
    return f"{start}Central Agg Time 0.1500s | Marginal Agg Time 0.0500s | Reduce Time 0.0500s"


def adaqp(
    mode: str = "AdaQP",
    scheme: str = "uniform",
    ranks: int = 4,
    epochs: int = 30,
    metric: str = "Acc",
    loss: float | None = None,
    finished: bool = True,
) -> str:
    """A run as the console shows it, with a report every ten epochs. Seconds grow by 0.1 from report to report."""
    text = ""
    for rank in range(ranks):
        text += (
            f"INFO:trainer:<Communicator(rank: {rank}, backend: gloo, world_size: {ranks}, local_rank: {rank}, "
            f"device: cuda:{rank})>\n"
        )
        text += f"INFO:trainer:<Assigner(rank: {rank}, default scheme={scheme})>\n"
    for epoch in range(10, epochs + 1, 10):
        value = 10 / epoch if loss is None else loss
        text += (
            f"INFO:trainer:Epoch {epoch:05d} | Loss {value:.4f} | Train {metric} 92.00% | Val {metric} 91.00% | "
            f"Test {metric} {80 + epoch / 10:.2f}%\n{adaqp_times(mode, 1 + epoch / 100)}\n"
        )
    if not finished:
        return text
    return text + (
        "INFO:trainer:\nHighest Train: 92.00\nHighest Valid: 91.00\n  Final Train: 92.00\n  Final Valid: 91.00\n"
        "   Final Test: 83.50\n"
    )
