"""From `harness new strategy` to a strategy that conforms: what the kit says leads from each step to the next."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.conformance.case_list import make_case as kit_case
from harness.conformance.checks import Finding
from harness.conformance.suite import check_case as findings_of
from harness.ledger import AxisName
from tests.conformance.test_examples import CODE
from tests.python_path import with_python_path

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kind", [[], ["--mini-batch"]])
@pytest.mark.parametrize("name", ["x", "a-strategy-of-forty-letters-and-a-number"])
def test_a_new_package_passes_its_own_lint(kind: list[str], name: str, tmp_path: Path) -> None:
    assert main(["new", "strategy", name, "--into", str(tmp_path), *kind]) == 0
    for command in (["check"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--no-cache"]
        done = subprocess.run(ruff, cwd=tmp_path / name, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
    assert (tmp_path / name / ".github/workflows/ci.yml").is_file()
    assert "my" not in "".join(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [[], ["--mini-batch"]])
def test_a_new_package_passes_mypy(kind: list[str], tmp_path: Path) -> None:
    main(["new", "strategy", "fresh", "--into", str(tmp_path), *kind])
    mypy = [sys.executable, "-m", "mypy", "--cache-dir", "/dev/null"]
    # mypy reads no editable installation, so it is shown the checkout, of which it then complains without our settings.
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    done = subprocess.run(
        mypy, cwd=tmp_path / "fresh", env=environment, capture_output=True, text=True, check=False
    )
    told = [line for line in done.stdout.splitlines() if not line.startswith(f"{ROOT}/")]
    assert "source files" in told.pop(), done.stdout + done.stderr
    assert told == []


@pytest.mark.slow
def test_test_of_a_new_package_passes_for_a_finished_strategy_and_names_a_broken_check(
    tmp_path: Path,
) -> None:
    """The package is found as an installed one is: by the entry points of a distribution on the path."""
    main(["new", "strategy", "fresh", "--into", str(tmp_path)])
    package = tmp_path / "fresh"
    installed = package / "fresh-0.1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: fresh\nVersion: 0.1.0\n")
    (installed / "entry_points.txt").write_text("[harness.strategies]\nfresh = fresh.strategy:Fresh\n")
    finished = changed(CODE[0], ("GatheredRows", "Fresh"), ("gathered-rows", "fresh"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    for code, passes in ((finished, True), (changed(finished, ("Op.ALL_GATHER", "Op.BROADCAST")), False)):
        (package / "fresh/strategy.py").write_text(code)
        environment = with_python_path(package, ROOT, PYTHONDONTWRITEBYTECODE="1")
        done = subprocess.run(
            command, cwd=package, env=environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode == 0) == passes, done.stdout + done.stderr
    assert "elements equal the formula" in done.stdout


def broken(code: str, folder: Path, axis: AxisName, ranks: int, pool: Any) -> list[Finding]:
    """The checks that a version of the strategy breaks on a grid."""
    file = folder / f"version_{len(list(folder.glob('version_*')))}.py"
    file.write_text(code)
    case = kit_case(f"{file}:Fresh", {axis: ranks}, "the first case of several ranks")
    return [finding for finding in findings_of(case, pool.run, [0]) if not finding.holds]


def changed(code: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert old in code, old
        code = code.replace(old, new)
    return code


def test_check_leads_from_the_skeleton_of_the_full_graph_to_the_end(tmp_path: Path, pool: Any) -> None:
    main(["new", "strategy", "fresh", "--into", str(tmp_path)])
    code, P = (tmp_path / "fresh/fresh/strategy.py").read_text(), AxisName.P
    assert broken(code, tmp_path, P, 1, pool) == []
    first, *_ = broken(code, tmp_path, P, 3, pool)
    assert first.check == "trains" and "`reduce_gradients`" in first.look
    assert "Traceback" not in first.detail

    code = changed(
        code,
        (
            'sum them (`reduce_all_gradients`)."""\n',
            'sum them."""\n        reduce_all_gradients(weights, self.over)\n',
        ),
        ("dense_bytes\n", "dense_bytes, reduce_all_gradients\n"),
    )
    first, *others = broken(code, tmp_path, P, 3, pool)
    assert first.check == "losses equal serial"
    assert {"elements equal the formula"} <= {each.check for each in others}
    assert first.wrong[0].when == "epoch 0"

    finished = changed(CODE[0], ("GatheredRows", "Fresh"))
    assert broken(finished, tmp_path, P, 3, pool) == []
    no_words = changed(finished, ("words.add(FORWARD, layer", "words.add(FORWARD, -1"))
    (failed,) = broken(no_words, tmp_path, P, 3, pool)
    assert failed.check == "elements equal the formula"
    assert failed.look.startswith(f"{tmp_path}/version_")
    line = no_words.splitlines()[int(failed.look.split(":")[1].split()[0]) - 1]
    assert line.strip().startswith("def words(")


def test_check_leads_from_the_skeleton_of_mini_batches_to_the_end(tmp_path: Path, pool: Any) -> None:
    main(["new", "strategy", "fresh", "--into", str(tmp_path), "--mini-batch"])
    code, D = (tmp_path / "fresh/fresh/strategy.py").read_text(), AxisName.D
    first, *_ = broken(code, tmp_path, D, 2, pool)
    assert first.check == "trains"
    code = changed(
        code,
        (
            'sum them (`reduce_all_gradients`)."""\n',
            'sum them."""\n        reduce_all_gradients(weights, self.replicas)\n',
        ),
        ("dense_bytes\n", "dense_bytes, reduce_all_gradients\n"),
    )
    assert [each.check for each in broken(code, tmp_path, D, 2, pool)] == [
        "unbiased",
        "elements equal the formula",
    ]
