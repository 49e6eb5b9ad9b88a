"""Built-in strategies pass, every mutant is found, and plugins from elsewhere are checked."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from harness.conformance import Extent, check
from harness.conformance.case import Case
from harness.conformance.checks import LOOK
from harness.conformance.suite import Runner
from harness.registry import registered_strategies
from harness.runtime.launch.worker_pool import Pool
from harness.strategy import Strategy
from harness.strategy.models.operators import Operators
from harness.strategy.parallel.row_strategy import RowStrategy
from tests.python_path import with_python_path

pytestmark = pytest.mark.long

ORDINARY = "directed, prime, partial mask"
"""The name of the cases that a check begins with: the usual model, on a grid of every size."""
MUTANTS = Path(__file__).parent / "mutants.py"
BUILT_IN = [point.name for point in registered_strategies() if point.value.startswith("harness.strategies.")]


WHOLE = ("pyg", "salient")
"""Strategies on which a quick test tries every case: the one that no fake GPU can run, and samples that a thread draws.
Of the others it tries the ordinary cases: `make test-device` has all cases of a quick check on fake GPUs, and the slow
tests have them on CPUs."""


class LeftOutError(Exception):
    """Ends a case that a test leaves out: the kit reports that the case does not train, and continues."""


def train_only(pool: Pool, case_name: str) -> Runner:
    """Return a runner that trains only the cases whose names contain the pattern."""

    def run(world: int, function: Callable[..., Any], case: Case, *arguments: Any) -> list[Any]:
        if not re.search(case_name, case.name):
            raise LeftOutError(case.name)
        return pool.run(world, function, case, *arguments)

    return run


@pytest.mark.parametrize(
    ("name", "extent"),
    [
        *(pytest.param(name, "quick", marks=[] if name in WHOLE else pytest.mark.slow) for name in BUILT_IN),
        *(pytest.param(name, "usual", marks=pytest.mark.slow) for name in BUILT_IN),
    ],
)
def test_a_built_in_strategy_conforms(name: str, extent: Extent, pool: Pool) -> None:
    findings = list(check(name, pool.run, extent))
    assert len(findings) >= 5
    assert [finding for finding in findings if not finding.holds] == []


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name not in WHOLE])
def test_a_built_in_strategy_conforms_on_every_grid(name: str, pool: Pool) -> None:
    findings = check(name, train_only(pool, f"{ORDINARY}$"), "quick")
    findings = list(takewhile(lambda finding: finding.case.endswith(ORDINARY), findings))
    checks = {finding.check for finding in findings}
    assert {"elements equal the formula", "equal to its replay"} <= checks
    assert "losses equal serial" in checks or name == "pipegcn"  # whose rows are an epoch late
    assert [finding for finding in findings if not finding.holds] == []


SEEN_LATE = {
    "AcceptsAnything": "(?!)",  # refusals need no training
    "DoubledProjection": "combination 2,",
    "FetchedReplicas": "combination 1$",
    "OwnTranspose": "combination [2-5]",
    "OwnTwice": "delay = 3",
    "RoundedDown": "p = 0.5",
    "SquaredAverage": "features = 0.95",
    "Unscaled": "p = 0.5",
}
"""The cases in which the kit sees mistakes that its first cases do not show; the tests train only these."""
ELEMENT = r"element \[\d+, \d+\]: serial \S+, run \S+ \(.* 1e-12\)"


@pytest.mark.parametrize(
    ("mutant", "failed", "told"),
    [
        ("LostSum", "trains", "epoch 0 .* ranks 0 and 1 .* weight of layer 0"),
        ("LostGroups", "trains", r"epoch 0 .* ranks \d+ and \d+ .* values of the projection"),
        ("Drifting", "trains", "epoch 0 .* ranks 0 and 1 .* weight of layer 0"),
        ("WrongTranspose", "gradients equal serial", "rank 0, epoch 0, .* weight of layer 2, " + ELEMENT),
        ("OneSampleForAll", "gradients equal serial", "rank 0, epoch 0, .*" + ELEMENT),
        ("UnscaledSample", "gradients equal serial", "rank 0, epoch 0, .*" + ELEMENT),
        ("Unscaled", "gradients equal serial", "rank 0, epoch 0, .*" + ELEMENT),
        ("FirstStepOnly", "parameters equal serial", "rank 0, after epoch 2, .*" + ELEMENT),
        ("LocalMean", "losses equal serial", r"rank 0, epoch 0, the loss: serial \S+, run \S+"),
        ("EveryLabel", "losses equal serial", r"rank 0, epoch 0, the loss: serial \S+, run \S+"),
        ("Miscounting", "accuracies equal serial", r"rank 0, after epoch 2, .* train: serial \d+ of"),
        ("Unseeded", "same seed, same bits", "rank 0, epoch 0, the loss: "),
        ("Peeking", "equal to its replay", r"rank 0, .* \w+Error"),
        ("EngineAsked", "equal to its replay", r"rank 0, epoch 0, event \d+: replay \[.*\], run \[.*\]"),
        ("HoldsTwice", "memory equals the formula", r"rank 0, .* X: formula [\d,]+, run [\d,]+ .* of 104, "),
        ("KeepsApart", "all memory is counted", r"rank 0, .* operators\.apart: .* run 12 \(\[3\] float32\)"),
        (
            "KeepsInModule",
            "all memory is counted",
            r"mutants\.KEPT\['numbers'\]: .* run 40 \(\[5\] float64\)",
        ),
        ("KeepsBase", "all memory is counted", r"rank 0, .*: allowed 0, run 64 \(\[9\] int64\)"),
        (
            "WrongFormula",
            "elements equal the formula",
            r"G by broadcast over p, backward, layer 1: formula [\d,]+, run [\d,]+",
        ),
        (
            "MiscountedRows",
            "rows of others are counted",
            r"rank 0, all epochs, rows of others: expected \d+, got \d+",
        ),
        ("AcceptsAnything", "refused with a reason", "expected .*, got "),
        ("RoundedDown", "unbiased", r"400 steps, .*: expected \S+, got \S+ \([\d.inf]+ deviations"),
        ("OwnTranspose", "gradients equal serial", "rank 0, epoch 0, .* weight of layer 2, " + ELEMENT),
        ("DroppedGradients", "gradients equal serial", "rank 0, epoch 0, .* weight of layer 1, " + ELEMENT),
        ("WrongSign", "losses equal serial", r"rank 0, epoch 2, the loss: serial \S+, run \S+"),
        ("SquaredAverage", "losses equal serial", r"rank 0, epoch 1, the loss: serial \S+, run \S+"),
        ("OlderRows", "losses equal serial", r"rank 0, epoch 1, the loss: serial \S+, run \S+"),
        ("OwnTwice", "losses equal serial", r"rank 0, epoch 0, the loss: serial \S+, run \S+"),
        ("DoubledProjection", "losses equal serial", r"rank 0, epoch 1, the loss: serial \S+, run \S+"),
        ("KeptProducts", "trains", r"training 3 epochs: expected no error, got rank \d of \d failed first"),
        ("FetchedReplicas", "elements equal the formula", r"rank 0, .*: brute force [\d,]+, run [\d,]+"),
    ],
)
def test_check_finds_a_mistake_and_says_where(mutant: str, failed: str, told: str, pool: Pool) -> None:
    findings = check(f"{MUTANTS}:{mutant}", train_only(pool, SEEN_LATE.get(mutant, "")), "quick")
    finding = next(each for each in findings if not each.holds and each.check == failed)
    head, _, what = finding.detail.partition(": ")
    assert re.match(rf"{mutant} .* on (p|row|d)=\d.*\d layers.* \d+ vertices", head)
    assert re.search(told, what, re.DOTALL), finding.detail
    assert re.match(rf".*mutants.py:\d+( \({mutant}\)|, in \w+): \S+", finding.look)


def test_gradients_are_checked_at_a_smaller_distance_where_a_derivative_jumps(pool: Pool) -> None:
    """In this case an element changes its sign within 1e-6 of the weights, before a ReLU or a leaky one."""
    findings = list(
        check(
            f"{MUTANTS}:WithoutRecurrence",
            pool.run,
            "quick",
            most=1,
            only="p=1: combination 3, precompute = False",
        )
    )
    assert "gradients equal differences" in {finding.check for finding in findings}
    assert [finding for finding in findings if not finding.holds] == []


def test_plugin_of_another_package_is_checked(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "__init__.py").write_text("")
    (tmp_path / "elsewhere" / "mine.py").write_text(
        dedent("""
        from harness.strategies.serial import Serial

        class Mine(Serial):
            name = "mine"
        """)
    )
    info = tmp_path / "elsewhere-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[harness.strategies]\nmine = elsewhere.mine:Mine\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "harness",
            "check",
            "mine",
            "--quick",
            "--json",
            "--certificate",
            str(tmp_path / "certificate"),
        ],
        env=with_python_path(tmp_path),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    page = json.loads(done.stdout)
    assert page["strategy"] == "mine"
    assert page["conforms"]
    certificate = json.loads((tmp_path / "certificate").read_text())
    assert (certificate["package"], certificate["package_version"], certificate["extent"]) == (
        "elsewhere",
        "1.0",
        "quick",
    )
    assert certificate["checks"] == len(page["findings"])
    names = ("__init__.py", "mine.py")
    sums = {name: sha256((tmp_path / "elsewhere" / name).read_bytes()).hexdigest() for name in names}
    assert (
        certificate["strategy_code"] == sha256(json.dumps(sums, separators=(",", ":")).encode()).hexdigest()
    )


@pytest.mark.parametrize("check", LOOK)
def test_hint_of_a_check_names_existing_methods(check: str) -> None:
    for name in re.findall(r"`([\w.]+)`", LOOK[check]):
        module, _, constant = name.rpartition(".")
        if module:
            assert hasattr(import_module(module), constant)
        else:
            assert any(hasattr(contract, name) for contract in (Strategy, RowStrategy, Operators)), name
