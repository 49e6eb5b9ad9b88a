"""Logs of AdaQP (github.com/raywan-110/AdaQP, revision 6bb6701).

Every process writes a line about itself. The first writes, every log_steps epochs, the loss and the accuracies, and on
the next line the seconds of that epoch; the form of this line shows whether products overlap with messages. Epochs are
numbered from 1. Options are not printed; the harness knows those of the command if it ran the program.
"""

import re
from math import nan
from typing import Any

from harness.external.log_options import Options, parse_command
from harness.external.program import (
    BIAS,
    EXCHANGE,
    FULL_GRAPH,
    NEEDS_DATASET,
    NEEDS_RANKS,
    NUMBER,
    PRODUCT,
    REDUCTION,
    Beyond,
    EpochReport,
    LoggedRun,
    Program,
    ProgramLog,
    list_accuracies,
    map_named,
)
from harness.ledger import NO_INDEX, Amounts, Direction, Key, Op, Phase

PROCESS = re.compile(r"<Communicator\(rank: (\d+), backend: (\w+), world_size: (\d+),")
SCHEME = re.compile(r"<Assigner\(rank: \d+, default scheme=(\w+)\)>")
METRICS = re.compile(
    rf"Epoch (\d+) \| Loss {NUMBER} \| Train (?:Acc|F1 micro) {NUMBER}% \| Val (?:Acc|F1 micro) {NUMBER}% "
    rf"\| Test (?:Acc|F1 micro) {NUMBER}%"
)
TIMES = re.compile(
    rf"Worker (\d+) \| Total Time {NUMBER}s \| Comm Time {NUMBER}s \| Quant Time {NUMBER}s "
    rf"\| (?:Agg Time {NUMBER}s|Central Agg Time {NUMBER}s \| Marginal Agg Time {NUMBER}s) "
    rf"\| Reduce Time {NUMBER}s"
)
ENDING = "Highest Valid:"
FINAL_TEST = re.compile(r"Final Test: ([\d.]+)")

QUANTIZATION = Key(Phase.CONVOLVE, NO_INDEX, Direction.FORWARD, Op.ELEMENTWISE)

MODES = {
    (False, False): "Vanilla",
    (True, True): "AdaQP",
    (True, False): "AdaQP-q",
    (False, True): "AdaQP-p",
}
"""The mode of the program, by whether messages are quantized and whether products overlap with them."""
QUANTIZES = {mode: quantizes for (quantizes, _), mode in MODES.items()}
OVERLAPS = {mode: overlaps for (_, overlaps), mode in MODES.items()}

DEFAULTS: Options = {
    "dataset": "reddit",
    "num_parts": 4,
    "model_name": "gcn",
    "mode": "AdaQP",
    "assign_scheme": "adaptive",
}
"""The options that decide the spec, with the defaults of the program."""
KEYS = {"dataset": "dataset.name", "num_parts": "ranks", "model_name": "model.kind"}
"""The key of a spec for each option that has one."""
FIXED: Options = {
    **FULL_GRAPH,
    "dataset.permutation": "none",
    "dataset.partition": "metis",
    "training.features": False,
    "training.evaluate_every": 1,
    "protocol": "corrected",
    "precision": "float32",
}
"""The keys that the program fixes. Its other settings are in AdaQP/config, which it does not print."""


def _read(log: ProgramLog) -> LoggedRun:
    printed = METRICS.findall(log.text)
    reports, mode = _read_reports(log.text)
    processes = [
        {"num_parts": int(size), "backend": backend} for _, backend, size in PROCESS.findall(log.text)
    ]
    scheme, test = SCHEME.search(log.text), FINAL_TEST.search(log.text)
    options = {
        **({"mode": mode} if mode else {}),
        **parse_command(f"{log.command}\n{log.text}", "main.py", DEFAULTS),
        **(processes[0] if processes else {}),
        **({"assign_scheme": scheme[1]} if scheme else {}),
    }
    return LoggedRun(
        options,
        reports,
        [
            each
            for epoch, _, *shares in printed
            for each in list_accuracies(int(epoch) - 1, *(float(share) / 100 for share in shares))
        ],
        float(test[1]) / 100 if test else None,
        final_loss=float(printed[-1][1]) if printed else None,
        nodes=processes,
        has_begun=bool(processes),
        has_ended=ENDING in log.text,
    )


def _read_reports(text: str) -> tuple[list[EpochReport], str | None]:
    """Return the reports, each with the times on the line after it, and the mode that these lines show."""
    reports, quantizes, overlaps = list[EpochReport](), False, None
    matches = list(METRICS.finditer(text))
    ends = [*(match.start() for match in matches[1:]), len(text)]
    for match, end in zip(matches, ends, strict=False):
        report = EpochReport(0, int(match[1]) - 1, nan, float(match[2]))
        if times := TIMES.search(text, match.end(), end):
            total, exchanging, quantizing, aggregating, central, marginal, reducing = (
                float(each or 0) for each in times.groups()[1:]
            )
            quantizes, overlaps = quantizes or quantizing > 0, times[6] is not None
            parts = {REDUCTION: Amounts(seconds=reducing)}
            if overlaps:  # a thread quantizes and exchanges while the main thread aggregates
                parts[EXCHANGE] = Amounts(in_flight_seconds=exchanging)
                parts[PRODUCT] = Amounts(seconds=central + marginal)
            else:
                parts[EXCHANGE] = Amounts(seconds=exchanging)
                parts[QUANTIZATION] = Amounts(seconds=quantizing)
                parts[PRODUCT] = Amounts(seconds=aggregating)
            report = report._replace(seconds=total, parts=parts)
        reports.append(report)
    mode = None if overlaps is None else MODES[quantizes, overlaps]
    return sorted(reports, key=lambda each: each.epoch), mode


def _map_keys(options: Options) -> dict[str, Any]:
    """Return the keys of a run. Without quantization, the program does the same as BNS-GCN with p = 1."""
    keys = {**FIXED, **map_named(options, KEYS)}
    mode = options.get("mode")
    if mode not in QUANTIZES:
        return keys
    keys["strategy.params.overlap"] = OVERLAPS[mode]
    if not QUANTIZES[mode]:
        plain = {"p": 1.0, "precompute": False, "wire": "full"}
        return {
            **keys,
            "strategy.name": "bns-gcn",
            **{f"strategy.params.{key}": value for key, value in plain.items()},
        }
    return {**keys, "strategy.name": "adaqp"}


# What a spec cannot express.


def _describe_parameters(options: Options) -> str | None:
    rounded = (
        "sends the scale and the zero point of a row as bfloat16, which biases the row; ours sends float32"
    )
    return rounded if QUANTIZES.get(options.get("mode", "")) else None


def _describe_scheme(options: Options) -> str | None:
    if not QUANTIZES.get(options.get("mode", "")):
        return None
    schemes = {
        "adaptive": "chooses the bit width of each message anew in every cycle, from the ranges of all messages",
        "random": "draws 2, 4 or 8 bits for each row anew in every cycle; ours has a third of the rows for each",
    }
    return schemes.get(options.get("assign_scheme", ""))


def _describe_overlap(options: Options) -> str | None:
    overlaps = OVERLAPS.get(options.get("mode", ""))
    return (
        "computes vertices without remote neighbours meanwhile; ours multiplies all own columns"
        if overlaps
        else None
    )


def _describe_loops(options: Options) -> str | None:
    is_sage = options.get("model_name") == "sage"
    return "the mean over the neighbours includes the vertex itself; ours does not" if is_sage else None


ADAQP = Program(
    "AdaQP",
    "Epoch 00010 | Loss ... | Train Acc ...% | Val Acc ...% | Test Acc ...%",
    _read,
    _map_keys,
    [
        BIAS,
        Beyond(
            "norm",
            lambda _: (
                "layer normalisation, with means and biases, after dropout, unless use_norm is off in its "
                "configuration; ours is RMSNorm, before dropout"
            ),
            "model.norm",
        ),
        Beyond("self loops", _describe_loops),
        Beyond("bfloat16 parameters", _describe_parameters),
        Beyond("assign_scheme", _describe_scheme, "strategy.params.bits"),
        Beyond("overlap", _describe_overlap),
    ],
    {
        **NEEDS_DATASET,
        **NEEDS_RANKS,
        "strategy.name": "its --mode: give --set strategy.name=adaqp if it was AdaQP or AdaQP-q, or --set "
        "strategy.name=bns-gcn if it was Vanilla or AdaQP-p.",
    },
    times="median",
    ending="its final statistics",
    appends="AdaQP appends to trainer.log: give the output of one run.",
)
