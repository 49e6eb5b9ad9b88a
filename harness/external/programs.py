"""Reads the logs of other programs, and translates their options to the keys of a spec where a key exists."""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from math import isfinite
from typing import Any, NamedTuple

from harness.errors import UserError

# A log of BNS-GCN or PipeGCN. Both programs print the same lines. All processes share a log, so a line may have two
# reports. Anything before a report on its line (ranks by `srun -l`, times) is ignored.

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
    """The report of a process after an epoch: mean times over all epochs since the first five, and the loss."""

    rank: int
    epoch: int
    seconds: float
    communicating: float
    reducing: float
    loss: float


class Accuracy(NamedTuple):
    """The accuracy on a split after an epoch, as a fraction."""

    epoch: int
    split: str
    share: float


class ProgramLog:
    """The log of a program. `where` names it in errors; `exit_code` is that of the program if the harness ran it."""

    def __init__(self, text: str, where: str, exit_code: int | None = None) -> None:
        self.text, self.where, self.exit_code = text, where, exit_code

    @cached_property
    def reports(self) -> list[EpochReport]:
        """All reports, sorted by process and epoch."""
        matches = (match.groups() for match in EPOCH.finditer(self.text))
        return sorted(
            EpochReport(int(rank), int(epoch), *map(float, numbers)) for rank, epoch, *numbers in matches
        )

    @cached_property
    def last_reports(self) -> dict[int, EpochReport]:
        """The last report of each process, by its rank."""
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
    def final_test_accuracy(self) -> float | None:
        """The test accuracy of the model that was best on the validation vertices, printed at the end."""
        match = TEST.search(self.text)
        return float(match[1]) / 100 if match else None

    @property
    def device_peaks(self) -> dict[int, int]:
        """The peak GPU memory of each process in bytes, by its rank."""
        return {int(rank): int(float(peak) * 2**20) for rank, peak in MEMORY.findall(self.text)}

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The options that the program prints when it starts; empty if the log lacks them.

        Each node of a run prints its options once. This is the longest of them.
        """
        return max(self.settings_of_nodes, key=len, default={})

    @cached_property
    def settings_of_nodes(self) -> list[dict[str, Any]]:
        """All options that were printed, in the order of the log."""
        return [dict(_parse_options(printed.rstrip())) for printed in SETTINGS.findall(self.text)]

    def format_last_lines(self, count: int = 8) -> str:
        """Return the last `count` lines that are not empty."""
        return "\n".join([line for line in self.text.splitlines() if line.strip()][-count:])


def _parse_options(printed: str) -> Iterator[tuple[str, Any]]:
    """Yield the names and values after `Namespace(`, except an option that is cut off at the end of the line."""
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
    """Return the value of a Python literal, inf or nan. Other text, such as a path, is returned unchanged."""
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        try:
            return float(text)
        except ValueError:
            return text
    return value if _is_plain(value) else text


def _is_plain(value: Any) -> bool:
    """Return True if JSON can represent the value unchanged."""
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
"""The key of a spec for each option that has one."""
SMOOTHED = {"feat_corr": "strategy.params.features", "grad_corr": "strategy.params.gradients"}
"""The parameter of pipegcn for each flag that turns on the smoothing of stale values."""
MODELS = {"graphsage": "sage"}
"""The models that have another name here."""
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
"""The keys that both programs fix, whatever their options are."""


class OptionBeyondSpec(NamedTuple):
    """An option that a spec cannot express."""

    option: str
    describe: Callable[[Any], str | None]
    """Returns a description of the value, or None if the option is not used."""
    key: str | None
    """The key of a spec that is unknown if the option is used."""


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
    """The values of the known keys of its spec, by dotted key."""
    beyond: dict[str, str]
    """Descriptions of the settings that a spec cannot express, by option."""


class Program(NamedTuple):
    """A program, and how to translate its options to one of our strategies."""

    title: str
    mark: str
    """An option that only this program has."""
    map_strategy: Callable[[Settings], dict[str, Any]]
    """Returns the keys of the strategy that does the same with these options."""


def _map_bns_gcn(_: Settings) -> dict[str, Any]:
    """Return the strategy keys of BNS-GCN, which only runs with --use-pp."""
    return {"strategy.name": "bns-gcn", "strategy.params.overlap": False, "strategy.params.precompute": True}


def _map_pipegcn(options: Settings) -> dict[str, Any]:
    """Return the strategy keys of PipeGCN. Without its pipeline it does the same as BNS-GCN with p = 1."""
    if "enable_pipeline" not in options:
        return {}
    if not options["enable_pipeline"]:
        return {"strategy.name": "bns-gcn", "strategy.params.p": 1.0, "strategy.params.overlap": False}
    kept = {ours: _read_kept_share(options, flag) for flag, ours in SMOOTHED.items() if flag in options}
    return {"strategy.name": "pipegcn", **{ours: share for ours, share in kept.items() if share is not None}}


def _read_kept_share(options: Settings, flag: str) -> Any:
    """Return the fraction of past values that smoothing keeps; None if the log does not show it."""
    return options.get("corr_momentum") if options[flag] else 0.0


PROGRAMS = {
    "bns-gcn": Program("BNS-GCN", "sampling_rate", _map_bns_gcn),
    "pipegcn": Program("PipeGCN", "enable_pipeline", _map_pipegcn),
}


def read_settings(log: ProgramLog, program: Program) -> LogSettings:
    """Return the settings in a log. Raise UserError for another program's log or a value that a spec cannot hold."""
    options = log.settings
    if options and program.mark not in options:
        writers = [name for name, other in PROGRAMS.items() if other.mark in options]
        way_out = f" Read it by --format {writers[0]}." if writers else ""
        raise UserError(
            f"{log.where} is not a log of {program.title}: its options lack {program.mark}.{way_out}"
        )
    beyond = {
        option: description
        for option, describe, _ in BEYOND
        if option in options and (description := describe(options[option]))
    }
    if options.get("model") != "gat":
        beyond.pop("heads", None)
    keys = {**ALWAYS, **program.map_strategy(options), **_map_options(options)}
    for key, value in keys.items():
        if isinstance(value, float) and not isfinite(value):
            raise UserError(
                f"{log.where}: the run had {key} = {value}, which a spec cannot hold: it must be a finite number."
            )
    if len({each.get("seed") for each in log.settings_of_nodes if program.mark in each}) > 1:
        keys.pop("seed", None)  # without --fix-seed each node has its own
    lost = {each.key for each in BEYOND if each.option in beyond}
    return LogSettings({key: value for key, value in keys.items() if key not in lost}, beyond)


def _map_options(options: Settings) -> dict[str, Any]:
    """Return the keys that follow from a single option each. Options without a value give no key."""
    keys = {ours: options[theirs] for theirs, ours in KEYS.items() if options.get(theirs) is not None}
    if "model" in options:
        keys["model.kind"] = MODELS.get(options["model"], options["model"])
    if options.get("model") == "gat" and "heads" in options:
        keys["model.heads"] = options["heads"]
    if "norm" in options:
        keys["model.norm"] = False  # `read_settings` removes this key if the norm is beyond a spec
    if options.get("eval") is False:
        keys["training.evaluate_every"] = 0
    elif options.get("eval") and "log_every" in options:
        keys["training.evaluate_every"] = options["log_every"]
    return keys
