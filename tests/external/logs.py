"""Logs as BNS-GCN and PipeGCN write them, to the letter of their format strings, of runs that nobody ran."""

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
