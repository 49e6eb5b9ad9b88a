"""Logs of PipeGCN (github.com/GATECH-EIC/PipeGCN, revision 73ab949), which prints the lines of BNS-GCN."""

from typing import Any

from harness.external.bns_gcn_log import COMMON_BEYOND, REPORT, map_common_keys, read_lines
from harness.external.log_options import Options
from harness.external.program import NEEDS_DATASET, NEEDS_RANKS, Program

SMOOTHED = {"feat_corr": "strategy.params.features", "grad_corr": "strategy.params.gradients"}
"""The parameter of pipegcn for each flag that turns on the smoothing of stale values."""


def _map_pipegcn(options: Options) -> dict[str, Any]:
    """Return the keys of a run of PipeGCN. Without its pipeline it does the same as BNS-GCN with p = 1."""
    keys = map_common_keys(options)
    if "enable_pipeline" not in options:
        return keys
    if not options["enable_pipeline"]:
        whole = {"strategy.name": "bns-gcn", "strategy.params.p": 1.0, "strategy.params.overlap": False}
        return {**whole, **keys}
    kept = {ours: _read_kept_share(options, flag) for flag, ours in SMOOTHED.items() if flag in options}
    given = {ours: share for ours, share in kept.items() if share is not None}
    return {"strategy.name": "pipegcn", **given, **keys}


def _read_kept_share(options: Options, flag: str) -> Any:
    """Return the fraction of past values that smoothing keeps; None if the log does not show it."""
    return options.get("corr_momentum") if options[flag] else 0.0


PIPEGCN = Program(
    "PipeGCN",
    REPORT,
    lambda log: read_lines(log, "enable_pipeline"),
    _map_pipegcn,
    COMMON_BEYOND,
    {
        **NEEDS_DATASET,
        **NEEDS_RANKS,
        "strategy.name": "whether its pipeline was on (--enable-pipeline): give --set strategy.name=pipegcn if it was, "
        "or --set strategy.name=bns-gcn if it waited for the whole boundary.",
    },
    times="mean",
    all_report=True,
)
