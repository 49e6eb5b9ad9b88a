"""Which programs are understood, what their options are called in a spec, and what of them no spec can say."""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from math import isfinite
from typing import Any, NamedTuple

from harness.errors import UserError

# What a log of BNS-GCN or PipeGCN says, in its own words. Both programs print the same lines, all processes
# into one log, at times two on one line. Whatever stands before them on a line (ranks by `srun -l`, times)
# is passed over.

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
"""A text in quotes where a value can begin, or one character."""
OPENING, CLOSING = "([{<", ")]}>"


class Line(NamedTuple):
    """A process after some epoch: means over all epochs up to then but the first five, and its own loss."""

    rank: int
    epoch: int
    seconds: float
    communicating: float
    reducing: float
    loss: float


class Accuracy(NamedTuple):
    """Of one split, after an epoch."""

    epoch: int
    split: str
    share: float


class Log:
    """A log, read. `where` names it to people; `exit_code` is that of its program, if that was run now."""

    def __init__(self, text: str, where: str, exit_code: int | None = None) -> None:
        self.text, self.where, self.exit_code = text, where, exit_code

    @cached_property
    def lines(self) -> list[Line]:
        """Every process after every epoch that it speaks of."""
        found = (match.groups() for match in EPOCH.finditer(self.text))
        return sorted(Line(int(rank), int(epoch), *map(float, numbers)) for rank, epoch, *numbers in found)

    @cached_property
    def last(self) -> dict[int, Line]:
        """By process, the last of these."""
        return {line.rank: line for line in self.lines}

    @property
    def accuracies(self) -> list[Accuracy]:
        """As they were found while it trained."""
        found = []
        for epoch, valid, test in VALID.findall(self.text):
            found.append(Accuracy(int(epoch), "valid", float(valid) / 100))
            found += [Accuracy(int(epoch), "test", float(test) / 100)] if test else []
        return found

    @property
    def result(self) -> float | None:
        """The accuracy on test vertices, in the end, of the model that was best on validation vertices."""
        said = TEST.search(self.text)
        return float(said[1]) / 100 if said else None

    @property
    def device_peaks(self) -> dict[int, int]:
        """Bytes that a process had allocated on its GPU, at most."""
        return {int(rank): int(float(peak) * 2**20) for rank, peak in MEMORY.findall(self.text)}

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The options of the program, which it prints when it starts; nothing if they are not in the log.

        A run over several nodes has them once from each.
        """
        return max(self.each_settings, key=len, default={})

    @cached_property
    def each_settings(self) -> list[dict[str, Any]]:
        """Every print of options in the log."""
        return [dict(_options(said.rstrip())) for said in SETTINGS.findall(self.text)]

    def ending(self, lines: int = 8) -> str:
        """Its last lines that are not empty."""
        return "\n".join([line for line in self.text.splitlines() if line.strip()][-lines:])


def _options(said: str) -> Iterator[tuple[str, Any]]:
    """Names and values of what stands after `Namespace(`; an option that is cut off with its line is left out."""
    depth, pieces = 0, [""]
    for token in TOKEN.findall(said):
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
        yield name, _value(text)


def _value(text: str) -> Any:
    """A literal of Python, a number that is none (inf, nan), or the text as it stands: a path, a word."""
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        try:
            return float(text)
        except ValueError:
            return text
    return value if _plain(value) else text


def _plain(value: Any) -> bool:
    """Whether it can stand in a record as it is."""
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _plain(inner) for key, inner in value.items())
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
"""What both programs do whatever their options are."""


class Beyond(NamedTuple):
    """An option that no spec can say: in words where it is used, and the key of a spec that it leaves unknown."""

    option: str
    words: Callable[[Any], str | None]
    key: str | None


NORMS = {
    "layer": "layer normalisation, with means and biases; ours is RMSNorm",
    "batch": "batch normalisation over all training vertices; ours is RMSNorm",
}
BEYOND = [
    Beyond(
        "norm", lambda norm: NORMS.get(norm, f"{norm}") if norm not in (None, "none") else None, "model.norm"
    ),
    Beyond("n_linear", lambda some: f"its last {some} layers have no A" if some else None, "model.layers"),
    Beyond(
        "inductive", lambda it: "trained on the graph of the training vertices alone" if it else None, None
    ),
    Beyond("heads", lambda heads: f"{heads} heads, averaged in every layer" if heads != 1 else None, None),
]


class Told(NamedTuple):
    """What a log says: keys of a spec, dotted; and by option, what no spec can say."""

    keys: dict[str, Any]
    beyond: dict[str, str]


class Program(NamedTuple):
    """A program, how its logs are known, and which of our strategies does the same."""

    title: str
    mark: str
    """An option that it has and the others have not."""
    strategy: Callable[[Settings], dict[str, Any]]


def _bns(_: Settings) -> dict[str, Any]:
    """It runs with --use-pp alone."""
    return {"strategy.name": "bns-gcn", "strategy.params.overlap": False, "strategy.params.precompute": True}


def _pipe(told: Settings) -> dict[str, Any]:
    """Without its pipeline it waits for the whole boundary, as BNS-GCN with p = 1 does."""
    if "enable_pipeline" not in told:
        return {}
    if not told["enable_pipeline"]:
        return {"strategy.name": "bns-gcn", "strategy.params.p": 1.0, "strategy.params.overlap": False}
    kept = {ours: _kept(told, flag) for flag, ours in SMOOTHED.items() if flag in told}
    return {"strategy.name": "pipegcn", **{ours: share for ours, share in kept.items() if share is not None}}


def _kept(told: Settings, flag: str) -> Any:
    """The share of the past that is kept; None where the log does not say it."""
    return told.get("corr_momentum") if told[flag] else 0.0


PROGRAMS = {
    "bns-gcn": Program("BNS-GCN", "sampling_rate", _bns),
    "pipegcn": Program("PipeGCN", "enable_pipeline", _pipe),
}


def told_by(program: Program, log: Log) -> Told:
    """What a log tells; refused if it tells that another program wrote it, or what cannot be."""
    told = log.settings
    if told and program.mark not in told:
        wrote = [name for name, other in PROGRAMS.items() if other.mark in told]
        way_out = f" Read it by --format {wrote[0]}." if wrote else ""
        raise UserError(
            f"{log.where} is no log of {program.title}: the options that it begins with lack {program.mark}.{way_out}"
        )
    beyond = {
        option: words
        for option, words_of, _ in BEYOND
        if option in told and (words := words_of(told[option]))
    }
    if told.get("model") != "gat":
        beyond.pop("heads", None)
    keys = {**ALWAYS, **program.strategy(told), **_keys(told)}
    for key, value in keys.items():
        if isinstance(value, float) and not isfinite(value):
            raise UserError(
                f"{log.where}: it was run with {key} = {value}, which is no number that a spec can hold."
            )
    if len({each.get("seed") for each in log.each_settings if program.mark in each}) > 1:
        keys.pop("seed", None)  # without --fix-seed every node draws its own
    lost = {each.key for each in BEYOND if each.option in beyond}
    return Told({key: value for key, value in keys.items() if key not in lost}, beyond)


def _keys(told: Settings) -> dict[str, Any]:
    """What options alone say, each by itself; one without a value says nothing."""
    keys = {ours: told[theirs] for theirs, ours in KEYS.items() if told.get(theirs) is not None}
    if "model" in told:
        keys["model.kind"] = MODELS.get(told["model"], told["model"])
    if told.get("model") == "gat" and "heads" in told:
        keys["model.heads"] = told["heads"]
    if "norm" in told:
        keys["model.norm"] = False  # what it is otherwise, no spec can say
    if told.get("eval") is False:
        keys["training.evaluate_every"] = 0
    elif told.get("eval") and "log_every" in told:
        keys["training.evaluate_every"] = told["log_every"]
    return keys
