"""The kit holds for the built-in strategies, sees every mutant, and serves plugins from elsewhere."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from harness.check import check
from harness.registry import registered

MUTANTS = Path(__file__).parent / "mutants.py"
OTHERS = {
    *("salient", "massivegnn", "quiver"),  # distdgl with a cache
    *("bulk-ladies", "graphsaint-node"),  # another sampler of bulk-sage and graphsage
    *("cagnet-sa-1.5d", "pipegcn"),  # cagnet-1.5d and bns-gcn, with the halo of cagnet-sa-1d
    "cluster-gcn",  # mini-batches as graphsage has them, of parts as bns-gcn has them
}
"""Of strategies that are mostly the same code, the quick tests have one."""


def built_in() -> Iterator[Any]:
    for point in registered():
        if point.value.startswith("strategies."):
            yield pytest.param(point.name, marks=[pytest.mark.slow] if point.name in OTHERS else [])


@pytest.mark.parametrize("name", [*built_in()])
def test_a_built_in_strategy_conforms(name: str, pool) -> None:
    findings = list(check(name, pool.run))
    assert len(findings) > 10
    assert [finding for finding in findings if not finding.holds] == []


@pytest.mark.parametrize(
    ("mutant", "law"),
    [
        ("LostSum", "gradients equal serial"),
        ("WrongTranspose", "gradients equal serial"),
        ("LocalMean", "losses equal serial"),
        ("EveryLabel", "losses equal serial"),
        ("Drifting", "gradients equal serial"),
        ("Unseeded", "same seed, same bits"),
        ("Peeking", "equal to its replay"),
        ("EngineAsked", "equal to its replay"),
        ("HoldsTwice", "memory equals the formula"),
        ("WrongFormula", "words equal the formula"),
        ("AcceptsAnything", "refused with a reason"),
        ("OneSampleForAll", "gradients equal serial"),
        ("UnscaledSample", "gradients equal serial"),
        ("LostGroups", "gradients equal serial"),
        ("FirstStepOnly", "parameters equal serial"),
        ("RoundedDown", "unbiased"),
        ("Unscaled", "gradients equal serial"),
    ],
)
def test_the_kit_sees_a_mistake(mutant: str, law: str, pool) -> None:
    assert any(
        not finding.holds and finding.law in (law, "trains")
        for finding in check(f"{MUTANTS}:{mutant}", pool.run)
    )


def test_the_kit_serves_a_plugin_of_another_package(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "__init__.py").write_text("")
    (tmp_path / "elsewhere" / "mine.py").write_text(
        dedent("""
        from strategies.cagnet.oned import OneD

        class Mine(OneD):
            name = "mine"
        """)
    )
    info = tmp_path / "elsewhere-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[harness.strategies]\nmine = elsewhere.mine:Mine\n")
    done = subprocess.run(
        [sys.executable, "-m", "harness", "check", "mine", "--json"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    page = json.loads(done.stdout)
    assert page["strategy"] == "mine"
    assert page["conforms"]
