"""The programs whose logs are understood, the keys of a spec behind their options, and options beyond any spec."""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from math import isfinite
from typing import Any, NamedTuple

from harness.errors import UserError

# A log of BNS-GCN or PipeGCN. Both programs print the same lines, all processes into one log, at times two on one
# line. Anything before them on a line (ranks by `srun -l`, times) is passed over.

NUMBER = r"(-?\d+\.\d{4}|-?inf|nan)"
EPOCH = re.compile(
    rf"Process (\d+) \| Epoch (\d+) \| Time\(s\) {NUMBER} "
    rf"\| Comm\(s\) {NUMBER} \| Reduce\(s\) {NUMBER} \| Loss {NUMBER}"
)
VALID = re.compile(r"Epoch (\d+) \| (?:Validation )?Accuracy ([\d.]+)%(?: \| Test Accuracy ([\d.]+)%)?")
TEST = re.compile(r"Test Result \| Accuracy ([\d.]+)%")
MEMORY = re.compile(r"\(rank (\d+)\) memory stats: current [\d.]+MB, peak ([\d.]+)MB")
SETTINGS = re.compile(r"\bNamespace\((?=\w+=)(.*)$", re.MULTILINE)
QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
NAMED = re.compile(r"\s*[A-Za-z_]\w*=")
TOKEN = re.compile(rf"(?<=[=(\[{{, ])(?:{QUOTED})|.")
"""A quoted text at the beginning of a value, or one character."""
OPENING, CLOSING = "([{<", ")]}>"


class EpochReport(NamedTuple):
    """The report of a process after an epoch: means over the epochs since the first five, and the loss."""

    rank: int
    epoch: int
    seconds: float
    communicating: float
    reducing: float
    loss: float


class Accuracy(NamedTuple):
    """The accuracy on a split, after an epoch."""

    epoch: int
    split: str
    share: float


class Log:
    """A log, which errors call `where`. `exit_code` is the exit code of the program, if the harness ran it."""

    def __init__(self, text: str, where: str, exit_code: int | None = None) -> None:
        self.text, self.where, self.exit_code = text, where, exit_code

    @cached_property
    def reports(self) -> list[EpochReport]:
        """All reports, by process and epoch."""
        matches = (match.groups() for match in EPOCH.finditer(self.text))
        return sorted(
            EpochReport(int(rank), int(epoch), *map(float, numbers)) for rank, epoch, *numbers in matches
        )

    @cached_property
    def last(self) -> dict[int, EpochReport]:
        """The last report of each process."""
        return {report.rank: report for report in self.reports}

    @property
    def accuracies(self) -> list[Accuracy]:
        """The accuracies that were printed during training."""
        printed = []
        for epoch, valid, test in VALID.findall(self.text):
            printed.append(Accuracy(int(epoch), "valid", float(valid) / 100))
            printed += [Accuracy(int(epoch), "test", float(test) / 100)] if test else []
        return printed

    @property
    def result(self) -> float | None:
        """The final accuracy on test vertices, of the model that was best on validation vertices."""
        result = TEST.search(self.text)
        return float(result[1]) / 100 if result else None

    @property
    def device_peaks(self) -> dict[int, int]:
        """The most bytes that each process had allocated on its GPU."""
        return {int(rank): int(float(peak) * 2**20) for rank, peak in MEMORY.findall(self.text)}

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The options that the program prints when it starts; empty if the log lacks them.

        Each node of a run prints its options once; the longest print counts.
        """
        return max(self.each_settings, key=len, default={})

    @cached_property
    def each_settings(self) -> list[dict[str, Any]]:
        """Every print of options in the log."""
        return [dict(_parse_options(printed.rstrip())) for printed in SETTINGS.findall(self.text)]

    def ending(self, lines: int = 8) -> str:
        """The last lines that are not empty."""
        return "\n".join([line for line in self.text.splitlines() if line.strip()][-lines:])


def _parse_options(printed: str) -> Iterator[tuple[str, Any]]:
    """Return the names and values after `Namespace(`, without an option that the end of the line cuts off."""
    depth, pieces = 0, [""]
    for token in TOKEN.findall(printed):
        if token == ")" and depth == 0:
            break
        depth = max(depth + (token in OPENING) - (token in CLOSING), 0)
        if token == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += token
    else:
        pieces.pop()
    options: list[str] = []
    for piece in pieces:
        if NAMED.match(piece):
            options.append(piece)
        elif options:  # a comma within a value that has no quotes
            options[-1] += f",{piece}"
    for option in options:
        name, _, text = option.strip().partition("=")
        yield name, _parse_value(text)


def _parse_value(text: str) -> Any:
    """Return the value of a Python literal, inf or nan; other text, as a path, is returned as it is."""
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        try:
            return float(text)
        except ValueError:
            return text
    return value if _is_plain(value) else text


def _is_plain(value: Any) -> bool:
    """Return whether a record can hold the value unchanged."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(inner) for key, inner in value.items())
    return value is None or isinstance(value, str | bool | int | float)


Settings = Mapping[str, Any]

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
SMOOTHED = {"feat_corr": "strategy.params.features", "grad_corr": "strategy.params.gradients"}
MODELS = {"graphsage": "sage"}
ALWAYS = {
    "dataset.permutation": "none",
    "strategy.params.wire": "full",
    "model.order": "aggregate_first",
    "model.projection": False,
    "model.activation": "relu",
    "model.residual": False,
    "training.warmup": 0,
    "training.optimizer": "adam",
    "training.features": False,
    "training.batch": 0,
    "training.target": 0.0,
    "measure": {},
    "protocol": "corrected",
    "precision": "float32",
    "launch": 0,
}
"""The keys that both programs fix, independent of their options."""


class OptionBeyondSpec(NamedTuple):
    """An option that a spec cannot express."""

    option: str
    words: Callable[[Any], str | None]
    """Describes the value, if the option is used."""
    key: str | None
    """The key of a spec that a used option leaves unknown."""


NORMS = {
    "layer": "layer normalisation, with means and biases; ours is RMSNorm",
    "batch": "batch normalisation over all training vertices; ours is RMSNorm",
}
BEYOND = [
    OptionBeyondSpec(
        "norm", lambda norm: NORMS.get(norm, f"{norm}") if norm not in (None, "none") else None, "model.norm"
    ),
    OptionBeyondSpec(
        "n_linear", lambda some: f"its last {some} layers have no A" if some else None, "model.layers"
    ),
    OptionBeyondSpec(
        "inductive", lambda it: "trained on the graph of the training vertices alone" if it else None, None
    ),
    OptionBeyondSpec(
        "heads", lambda heads: f"{heads} heads, averaged in every layer" if heads != 1 else None, None
    ),
]


class LogSettings(NamedTuple):
    """The settings of a logged run."""

    keys: dict[str, Any]
    """The known keys of its spec, dotted."""
    beyond: dict[str, str]
    """Descriptions of the settings beyond any spec, by option."""


class Program(NamedTuple):
    """A program and the keys of our strategy that does the same."""

    title: str
    mark: str
    """An option that only this program has."""
    strategy: Callable[[Settings], dict[str, Any]]


def _map_bns_gcn(_: Settings) -> dict[str, Any]:
    """BNS-GCN, which runs with --use-pp only."""
    return {"strategy.name": "bns-gcn", "strategy.params.overlap": False, "strategy.params.precompute": True}


def _map_pipegcn(options: Settings) -> dict[str, Any]:
    """PipeGCN. Without its pipeline it waits for the whole boundary, as BNS-GCN with p = 1 does."""
    if "enable_pipeline" not in options:
        return {}
    if not options["enable_pipeline"]:
        return {"strategy.name": "bns-gcn", "strategy.params.p": 1.0, "strategy.params.overlap": False}
    kept = {ours: _read_kept_share(options, flag) for flag, ours in SMOOTHED.items() if flag in options}
    return {"strategy.name": "pipegcn", **{ours: share for ours, share in kept.items() if share is not None}}


def _read_kept_share(options: Settings, flag: str) -> Any:
    """Return the fraction of past values that is kept; None if the log does not show it."""
    return options.get("corr_momentum") if options[flag] else 0.0


PROGRAMS = {
    "bns-gcn": Program("BNS-GCN", "sampling_rate", _map_bns_gcn),
    "pipegcn": Program("PipeGCN", "enable_pipeline", _map_pipegcn),
}


def read_settings(log: Log, program: Program) -> LogSettings:
    """Return the settings in a log. Refuse the log of another program, and values that a spec cannot hold."""
    options = log.settings
    if options and program.mark not in options:
        writers = [name for name, other in PROGRAMS.items() if other.mark in options]
        way_out = f" Read it by --format {writers[0]}." if writers else ""
        raise UserError(
            f"{log.where} is no log of {program.title}: the options that it begins with lack {program.mark}.{way_out}"
        )
    beyond = {
        option: words
        for option, words_of, _ in BEYOND
        if option in options and (words := words_of(options[option]))
    }
    if options.get("model") != "gat":
        beyond.pop("heads", None)
    keys = {**ALWAYS, **program.strategy(options), **_map_options(options)}
    for key, value in keys.items():
        if isinstance(value, float) and not isfinite(value):
            raise UserError(
                f"{log.where}: the run had {key} = {value}, which is no number that a spec can hold."
            )
    if len({each.get("seed") for each in log.each_settings if program.mark in each}) > 1:
        keys.pop("seed", None)  # without --fix-seed every node draws its own
    lost = {each.key for each in BEYOND if each.option in beyond}
    return LogSettings({key: value for key, value in keys.items() if key not in lost}, beyond)


def _map_options(options: Settings) -> dict[str, Any]:
    """Return the keys that follow from one option each. Options without a value give no key."""
    keys = {ours: options[theirs] for theirs, ours in KEYS.items() if options.get(theirs) is not None}
    if "model" in options:
        keys["model.kind"] = MODELS.get(options["model"], options["model"])
    if options.get("model") == "gat" and "heads" in options:
        keys["model.heads"] = options["heads"]
    if "norm" in options:
        keys["model.norm"] = False  # any other norm is beyond a spec, and takes this key out again
    if options.get("eval") is False:
        keys["training.evaluate_every"] = 0
    elif options.get("eval") and "log_every" in options:
        keys["training.evaluate_every"] = options["log_every"]
    return keys
