"""Changes over time: noise alone is no step, a known step is found where it is, and only equal things are compared."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from harness.commands.tracking import HistoryAnswer, track
from harness.errors import UserError
from harness.results.collect import collect
from harness.results.history import ALPHA, MANY_COMMITS, find_count_steps, find_steps

HISTORIES = 100
Noise = Callable[[np.random.Generator, int], np.ndarray]


def normal(rng: np.random.Generator, launches: int) -> np.ndarray:
    return rng.normal(0, 0.03, launches)


def heavy(rng: np.random.Generator, launches: int) -> np.ndarray:
    """Noise with outliers: Student's t with three degrees of freedom."""
    return rng.standard_t(3, launches) * 0.03


def simulate(
    rng: np.random.Generator, commits: int, launches: int, noise: Noise = normal, days: float = 0.0
) -> list[list[float]]:
    """Return values without a step, whose commits also differ by the noise of days."""
    return [np.exp(rng.normal(0, days) + noise(rng, launches)).tolist() for _ in range(commits)]


def scale(values: list[list[float]], levels: list[float]) -> list[list[float]]:
    """Multiply the launches of each commit by its level."""
    return [[level * value for value in launches] for launches, level in zip(values, levels, strict=True)]


@pytest.mark.parametrize(
    ("commits", "launches", "noise", "days"),
    [
        (2, 3, normal, 0.0),
        (5, 3, normal, 0.0),
        (5, 3, heavy, 0.0),
        (MANY_COMMITS, 2, normal, 0.03),
        (MANY_COMMITS, 1, heavy, 0.03),
    ],
)
def test_histories_of_noise_have_few_false_alarms(
    commits: int, launches: int, noise: Noise, days: float
) -> None:
    """At most ALPHA of them have one, up to three standard deviations of a sample of this size."""
    rng = np.random.default_rng(49)
    alarms = sum(
        any(find_steps(simulate(rng, commits, launches, noise, days), 3) for _ in range(3))
        for _ in range(HISTORIES)
    )
    bound = HISTORIES * ALPHA + 3 * (HISTORIES * ALPHA * (1 - ALPHA)) ** 0.5
    assert alarms <= bound


@pytest.mark.parametrize(
    ("commits", "launches", "ratio"), [(4, 3, 1.2), (6, 3, 0.8), (10, 1, 1.3), (20, 1, 1.2)]
)
def test_a_known_step_is_found_where_it_is(commits: int, launches: int, ratio: float) -> None:
    rng = np.random.default_rng(7)
    place = commits // 2
    found = 0
    for _ in range(60):
        values = simulate(rng, commits, launches)
        levels = [1.0] * place + [ratio] * (commits - place)
        steps = find_steps(scale(values, levels), 20)
        if [step.at for step in steps] == [place]:
            assert steps[0].interval and steps[0].interval.low < steps[0].interval.high
            assert (steps[0].ratio > 1) == (ratio > 1)
            found += 1
    assert found >= 54


def test_two_steps_are_both_found() -> None:
    rng = np.random.default_rng(3)
    levels = [1.0] * 4 + [1.5] * 4 + [2.5] * 4
    assert [step.at for step in find_steps(scale(simulate(rng, 12, 3), levels))] == [4, 8]


def test_a_single_value_is_never_a_level() -> None:
    assert find_steps([[1.0]] * 9 + [[3.0]]) == []
    assert find_steps([[1.0, 1.01], [3.0]]) == []
    assert [step.at for step in find_steps([[1.0, 1.01], [3.0, 3.01]])] == [1]


def test_certain_changes_below_the_least_are_not_reported() -> None:
    assert find_steps([[1.0] * 9, [1.01] * 9]) == []
    assert len(find_steps([[1.0] * 9, [1.03] * 9])) == 1


def test_counts_are_compared_by_seed() -> None:
    steps = find_count_steps([{0: 100.0, 1: 110.0}, {1: 110.0, 2: 90.0}, {0: 100.0, 2: 45.0}, {2: 45.0}])
    assert [(step.at, step.ratio) for step in steps] == [(2, 0.5)]
    assert [step.at for step in find_count_steps([{0: 0.0}, {0: 5.0}])] == [1]


CODES = ["b" * 40, "a" * 40, "c" * 40]


@pytest.fixture
def tables(synthetic: SimpleNamespace, tmp_path: Path) -> Callable[..., Path]:
    """`tables(commit, talk, **provenance)`: collected tables of a commit, with three launches."""

    def make(commit: str, talk: float = 0.2, day: int = 0, **provenance: object) -> Path:
        out = tmp_path / f"{commit[:2]}-{day}"
        told = synthetic.provenance(commit=commit, started=1.79e9 + 86_400 * day, **provenance)
        for launch in range(3):
            spec = synthetic.make_spec("cagnet-1d", "tiny", {"p": 2}, launch=launch)
            synthetic.write_ok(out / "runs", spec, 0.5, talk, provenance=told)
        collect(out / "runs", out)
        return out

    return make


def test_commits_without_a_checkout_are_in_the_order_of_their_runs(
    tables: Callable[..., Path], tmp_path: Path
) -> None:
    folders = [tables(code, day=3 - day) for day, code in enumerate(CODES)]
    answer = track(folders, tmp_path)
    assert [commit.commit for commit in answer.history.commits] == CODES[::-1]
    assert "nothing changed" in answer.headline


def test_commits_of_a_checkout_are_in_the_order_of_git(tables: Callable[..., Path], tmp_path: Path) -> None:
    codes = commit_twice(tmp_path / "checkout")
    answer = track([tables(code, day=-day) for day, code in enumerate(codes)], tmp_path / "checkout")
    assert [commit.commit for commit in answer.history.commits] == codes
    assert list(answer.subjects.values()) == ["Begin", "Go on"]


def commit_twice(root: Path) -> Sequence[str]:
    """Make a repository with two commits of the same second; return them, the older first."""
    import subprocess

    def git(*words: str) -> str:
        named = ["-c", "user.name=n", "-c", "user.email=e"]
        done = subprocess.run(
            ["git", "-C", str(root), *named, *words], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    root.mkdir()
    git("init", "-q")
    codes = []
    for subject in ("Begin", "Go on"):
        git("commit", "-q", "--allow-empty", "-m", subject)
        codes.append(git("rev-parse", "HEAD"))
    return codes


def test_slower_collective_is_found_since_its_commit(tables: Callable[..., Path], tmp_path: Path) -> None:
    folders = [
        tables(code, talk, day) for day, (code, talk) in enumerate(zip(CODES, (0.2, 0.6, 0.6), strict=True))
    ]
    answer = track(folders, tmp_path)
    (series,) = answer.changed
    assert (series.quantity.title, series.verdict, series.since) == ("epoch time", "slower", 1)
    assert series.ratio == pytest.approx(1.1 / 0.7, rel=0.1)
    assert answer.headline == "3 series over 3 commits: epoch time slower in 1"
    (row,) = [row for row in answer.to_document()["series"] if row["steps"]]
    assert (row["since"], row["quantity"]) == ("aaaaaaaa", "epoch time")


def test_other_machines_are_other_series_and_dirty_code_is_its_own_commit(
    tables: Callable[..., Path], tmp_path: Path
) -> None:
    folders = [tables("a" * 40), tables("b" * 40, day=1, cpu="another"), tables("b" * 40, day=2, dirty=True)]
    history = track(folders, tmp_path).history
    assert [bool(commit.folder) for commit in history.commits] == [False, False, True]
    assert history.single == 1 and len(history.series) == 3
    assert all([point.at for point in series.points] == [0, 2] for series in history.series)


def test_run_that_two_folders_have_counts_once(tables: Callable[..., Path], tmp_path: Path) -> None:
    one, two = tables("a" * 40), tables("b" * 40, day=1)
    history = track([one, two, one], tmp_path).history
    assert [len(point.values) for point in history.series[0].points] == [3, 3]


def test_configuration_that_no_longer_runs_is_named(
    tables: Callable[..., Path], synthetic: SimpleNamespace, tmp_path: Path
) -> None:
    one, runs = tables("a" * 40), tmp_path / "later"
    told = synthetic.provenance(commit="b" * 40, started=1.8e9)
    error = {"rank": 0, "type": "MemoryError", "message": "out of memory", "trace": ""}
    spec = synthetic.make_spec("cagnet-1d", "tiny", {"p": 2})
    synthetic.write_ok(runs, spec, 0.5, provenance=told, status="oom", error=error)
    collect(runs, tmp_path / "tables")
    answer = track([one, tmp_path / "tables"], tmp_path)
    assert "1 no longer run" in answer.headline
    assert [(each.status, each.label) for each in answer.history.broken] == [("oom", "tiny cagnet-1d p2")]


def test_one_commit_is_no_history(tables: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="measured runs of 1 commit, and a history needs two"):
        track([tables("a" * 40)], tmp_path)


def test_few_launches_are_undecided(
    tables: Callable[..., Path], synthetic: SimpleNamespace, tmp_path: Path
) -> None:
    folders = []
    for code in CODES[:2]:
        spec = synthetic.make_spec("serial", "tiny", {"p": 1})
        told = synthetic.provenance(commit=code)
        synthetic.write_ok(tmp_path / code / "runs", spec, 1.0 + (code < "b"), provenance=told)
        collect(tmp_path / code / "runs", tmp_path / code)
        folders.append(tmp_path / code)
    answer: HistoryAnswer = track(folders, tmp_path)
    assert "undecided" in {series.verdict for series in answer.history.series}
    assert "a step needs two launches before it and two after it" in str(answer)
