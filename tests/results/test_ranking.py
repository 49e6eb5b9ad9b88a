"""Each rule of comparison keeps the run of a cheating contributor out of the ranking, and nothing else."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import pytest

from harness.base.errors import UserError
from harness.registry import hash_strategy_code
from harness.report.packs_page import find_packs, judge_rows, list_runs, read_and_verify
from harness.results.check_certificate import make_certificate
from harness.results.launch_intervals import judge_ratio
from harness.results.ranking import RULES, rank_runs, summarize_targets
from harness.spec.root import find_root
from harness.spec.spec import hash_data
from tests.pack.editing import change_summary, change_table
from tests.synthetic_packs import add_runs, change_record, pack_runs

pytestmark = pytest.mark.long

ROOT = find_root()
Contribute = Callable[..., Path]


@pytest.fixture
def contribute(tmp_path: Path) -> Contribute:
    """`contribute(group, folder)`: the pack of all runs in a folder."""
    return partial(pack_runs, tmp_path / "packs")


@pytest.fixture
def honest(tmp_path: Path) -> Path:
    """Six launches of two strategies, of which cagnet-1d is the faster one."""
    folder = tmp_path / "honest"
    add_runs(folder, "cagnet-1d", {"p": 2}, 1.0)
    add_runs(folder, "plexus", {"x": 2, "y": 1, "z": 1}, 1.5)
    return folder


def judge(*places: Path) -> pd.DataFrame:
    """Return the runs of all packs in folders, with what the rules say about them."""
    packs = [read_and_verify(path, ROOT, folder) for path, folder in find_packs(places).items()]
    _, rows = list_runs(packs)
    return judge_rows(rows, ROOT)


def marks_of(rows: pd.DataFrame, group: str = "") -> set[str]:
    return set(rows.marks[rows.contributor == group] if group else rows.marks)


def test_honest_runs_are_ranked(honest: Path, contribute: Contribute, tmp_path: Path) -> None:
    contribute("Honest", honest)
    rows = judge(tmp_path / "packs")
    assert marks_of(rows) == {""} and rows.is_ranked.all() and rows.task.nunique() == 1
    (ranking,) = rank_runs(rows)
    first, second = ranking.contenders
    assert (first.strategy, second.strategy, ranking.results) == ("cagnet-1d", "plexus", "exact")
    assert ranking.is_decided and second.interval and second.interval.low > 1
    pairs = product(second.runs.epoch_seconds_median, first.runs.epoch_seconds_median)
    assert second.ratio == pytest.approx(median(one / other for one, other in pairs))


def halve_summary(runs: list[Path]) -> None:
    change_record(runs[0], lambda record: record["summary"].update(epoch_seconds_median=0.1))


def leave_out_slow_launch(runs: list[Path]) -> None:
    shutil.rmtree(runs[2])


def hide_graph(runs: list[Path]) -> None:
    change_record(runs[0], lambda record: record["provenance"].update(graph_hash=""))


def change_strategy(runs: list[Path]) -> None:
    change_record(runs[0], lambda record: record["provenance"].update(strategy_code="b" * 64))


def edit_code(runs: list[Path]) -> None:
    change_record(runs[0], lambda record: record["provenance"].update(dirty=True))


def have_no_commit(runs: list[Path]) -> None:
    change_record(runs[0], lambda record: record["provenance"].update(commit="", dirty=None))


def share_cores(runs: list[Path]) -> None:
    change_record(runs[0], lambda record: record["provenance"].update(cores=1, ranks_on_host=2))


CHEATS = {
    halve_summary: "broken",
    leave_out_slow_launch: "launches missing",
    hide_graph: "unknown graph",
    change_strategy: "uncertified",
    edit_code: "uncommitted",
    have_no_commit: "uncommitted",
    share_cores: "shared cores",
}


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.__name__)
def test_cheating_run_is_marked_and_not_ranked(
    cheat: Callable[[list[Path]], None], tmp_path: Path, contribute: Contribute
) -> None:
    folder = tmp_path / "cheater"
    add_runs(folder, "cagnet-1d", {"p": 2}, 1.0)
    cheat(add_runs(folder, "plexus", {"x": 2, "y": 1, "z": 1}, 0.2))
    contribute("Cheater", folder)
    rows = judge(tmp_path / "packs")
    marked = rows[rows.marks != ""]
    assert set(marked["strategy.name"]) == {"plexus"}
    assert set(marked.marks) == {CHEATS[cheat], "launches missing"}
    assert not marked.is_ranked.any()
    assert CHEATS[cheat] in [rule.mark for rule in RULES]
    assert rows.is_ranked.sum() == len(rows) - len(marked)


def test_copied_runs_are_not_ranked(honest: Path, contribute: Contribute, tmp_path: Path) -> None:
    contribute("Honest", honest)
    contribute("Copier", honest)
    rows = judge(tmp_path / "packs")
    assert marks_of(rows) == {"copied"} and not rank_runs(rows)


def scale_times(folder: Path, factor: float) -> None:
    """Multiply all times of the runs in a folder, so that their records do not contradict themselves."""
    for run in folder.iterdir():
        for table in ("epochs", "ledger"):
            change_table(run, table, lambda rows: rows.assign(seconds=rows.seconds * factor))
        change_table(run, "accuracy", lambda rows: rows.assign(train_seconds=rows.train_seconds * factor))
        change_summary(run)


def test_copied_runs_are_found_whatever_else_was_changed(
    honest: Path, contribute: Contribute, tmp_path: Path
) -> None:
    """Other times of the day, and all times multiplied by a factor."""
    copied = Path(shutil.copytree(honest, tmp_path / "copied"))
    scale_times(copied, 0.37)
    for run in copied.iterdir():
        later = {"started": 1_790_003_600.0, "finished": 1_790_003_660.0}
        change_record(run, lambda record, later=later: record["provenance"].update(later))
    contribute("Honest", honest)
    contribute("Copier", copied)
    rows = judge(tmp_path / "packs")
    assert marks_of(rows) == {"copied"} and not rank_runs(rows)


def test_a_launch_that_is_packed_as_several_is_found(contribute: Contribute, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    first, *others = add_runs(folder, "cagnet-1d", {"p": 2}, 1.0)
    for other in others:
        for table in first.glob("*.parquet"):
            shutil.copy(table, other)
        summary = json.loads((first / "record.json").read_text())["summary"]
        change_record(other, lambda record, summary=summary: record.update(summary=summary))
    contribute("Cheater", folder)
    rows = judge(tmp_path / "packs")
    assert marks_of(rows) == {"copied"}


def test_the_same_runs_in_two_packs_count_once(honest: Path, contribute: Contribute, tmp_path: Path) -> None:
    """Also if a blank in the record makes another archive of it: the interval must not shrink."""
    contribute("Honest", honest)
    (alone,) = rank_runs(judge(tmp_path / "packs"))
    again = Path(shutil.copytree(honest, tmp_path / "again"))
    for run in again.iterdir():
        path = run / "record.json"
        path.write_text(path.read_text() + " ")
    twice = pack_runs(tmp_path / "more", "Honest", again).parent
    (both,) = rank_runs(judge(tmp_path / "packs", twice))
    assert both.contenders[1].interval == alone.contenders[1].interval
    assert [len(each.runs) for each in both.contenders] == [6, 6]


def test_a_repeated_run_is_ranked_by_its_latest_record(
    honest: Path, contribute: Contribute, tmp_path: Path
) -> None:
    times = {"started": 1_790_500_000.0, "finished": 1_790_500_060.0}
    add_runs(tmp_path / "later", "cagnet-1d", {"p": 2}, 1.2, [3], **times)
    contribute("Honest", honest)
    more = pack_runs(tmp_path / "more", "Honest", tmp_path / "later").parent
    rows = judge(tmp_path / "packs", more)
    repeated = rows[rows.marks != ""]
    assert list(repeated.marks) == ["repeated"] and list(repeated.launch) == [3]
    assert (repeated["provenance.finished"] < rows["provenance.finished"].max()).all()
    assert rows.is_ranked.sum() == 12


# Names of groups.


def test_a_name_in_two_folders_of_a_repository_is_contested(honest: Path, tmp_path: Path) -> None:
    """Fast launches in the name of another group would be ranked as its own."""
    repository = tmp_path / "packs"
    pack_runs(repository / "honest", "Honest Group", honest)
    add_runs(tmp_path / "forged", "cagnet-1d", {"p": 2}, 0.01, range(6, 12))
    pack_runs(repository / "other", "honest  group", tmp_path / "forged")
    add_runs(tmp_path / "third", "rdm", {"p": 2}, 1.0)
    pack_runs(repository / "third", "Third", tmp_path / "third")
    rows = judge(repository)
    assert set(rows.marks[rows.contributor != "Third"]) == {"contested name"}
    assert marks_of(rows, "Third") == {""}
    files = sorted(repository.rglob("*.tar.gz"))
    assert "contested name" not in marks_of(judge(*files)), "files that the user chose"


def test_launches_of_several_packs_and_hosts_are_said(
    honest: Path, contribute: Contribute, tmp_path: Path
) -> None:
    contribute("Honest", honest)
    add_runs(tmp_path / "more", "cagnet-1d", {"p": 2}, 1.0, range(6, 12), host="node18")
    more = pack_runs(tmp_path / "later", "Honest", tmp_path / "more").parent
    rows = judge(tmp_path / "packs", more)
    told = dict(zip(rows["strategy.name"], rows.sources, strict=True))
    assert told == {"cagnet-1d": "2 packs, 2 hosts", "plexus": ""} and rows.is_ranked.all()


@pytest.mark.parametrize("name", ["Hon\u0435st Group", "\uff28onest Group"], ids=["Cyrillic e", "full width"])
def test_a_name_that_looks_like_another_is_refused(name: str, honest: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="may look like another name"):
        pack_runs(tmp_path / "packs", name, honest)


def test_failed_run_is_not_ranked(
    honest: Path, synthetic: Any, contribute: Contribute, tmp_path: Path
) -> None:
    spec = synthetic.make_spec("bns-gcn", "products-14m", {"p": 2})
    synthetic.write_failed(honest, spec, "timeout", "TimeoutError", "no word for 30 s")
    contribute("Honest", honest)
    rows = judge(tmp_path / "packs")
    assert "not ok" in rows.marks[rows.run_id.str.endswith(spec.run_id)].iloc[0]


def test_predicted_run_is_never_ranked(
    honest: Path, synthetic: Any, contribute: Contribute, tmp_path: Path
) -> None:
    synthetic.write_quoted(
        honest, synthetic.make_spec("bns-gcn", "products-14m", {"p": 2}), 1e-3, "predicted"
    )
    contribute("Honest", honest)
    (ranking,) = rank_runs(judge(tmp_path / "packs"))
    assert [each.strategy for each in ranking.contenders] == ["cagnet-1d", "plexus"]


# What is compared with what.


def test_other_graph_of_the_same_name_is_another_task(
    honest: Path, contribute: Contribute, tmp_path: Path
) -> None:
    for run in add_runs(honest, "bns-gcn", {"p": 2}, 0.01):
        change_record(run, lambda record: record["provenance"].update(graph_hash="c" * 64))
    contribute("Honest", honest)
    assert [len(ranking.contenders) for ranking in rank_runs(judge(tmp_path / "packs"))] in ([1, 2], [2, 1])


@pytest.mark.parametrize(
    "spec",
    [
        {"model": {"layers": 2, "hidden": 128}},
        {"precision": "float64"},
        {"model": {"layers": 3, "hidden": 128, "norm": True}},
        {"training": {"optimizer": "sgd"}},
    ],
    ids=["layers", "precision", "norm", "optimizer"],
)
def test_less_work_is_another_task(
    spec: dict[str, Any], honest: Path, contribute: Contribute, tmp_path: Path
) -> None:
    add_runs(honest, "bns-gcn", {"p": 2}, 0.01, spec=spec)
    contribute("Honest", honest)
    rows = judge(tmp_path / "packs")
    assert rows.task.nunique() == 2 and rows.is_ranked.all()
    assert {len(ranking.contenders) for ranking in rank_runs(rows)} == {1, 2}


def test_open_settings_leave_the_task(honest: Path, contribute: Contribute, tmp_path: Path) -> None:
    add_runs(
        honest, "bns-gcn", {"p": 2}, 0.8, spec={"training": {"lr": 0.5, "epochs": 10, "warmup": 2}, "seed": 7}
    )
    contribute("Honest", honest)
    (ranking,) = rank_runs(judge(tmp_path / "packs"))
    assert len(ranking.contenders) == 3


def test_two_groups_are_never_in_one_ranking(honest: Path, contribute: Contribute, tmp_path: Path) -> None:
    contribute("Honest", honest)
    add_runs(tmp_path / "other", "bns-gcn", {"p": 2}, 0.01)
    contribute("Other", tmp_path / "other")
    rankings = rank_runs(judge(tmp_path / "packs"))
    assert sorted(len(ranking.contenders) for ranking in rankings) == [1, 2]


def test_approximate_strategy_is_ranked_apart(honest: Path, contribute: Contribute, tmp_path: Path) -> None:
    add_runs(honest, "pipegcn", {"p": 2}, 0.01)
    contribute("Honest", honest)
    rankings = {ranking.results: ranking for ranking in rank_runs(judge(tmp_path / "packs"))}
    assert set(rankings) == {"exact", "approximate"} and len(rankings["exact"].contenders) == 2


def test_blocks_decide_what_launches_do_not(tmp_path: Path, contribute: Contribute) -> None:
    """Between blocks times differ by a factor of 8, and within each block plexus takes 1.3 times as long."""
    folder = tmp_path / "runs"
    for launch in range(7):
        for strategy, grid, factor in (
            ("cagnet-1d", {"p": 2}, 1.0),
            ("plexus", {"x": 2, "y": 1, "z": 1}, 1.3),
        ):
            add_runs(folder, strategy, grid, factor * 2.0 ** (launch % 4), [launch], block=f"night {launch}")
    contribute("Honest", folder)
    (ranking,) = rank_runs(judge(tmp_path / "packs"))
    assert ranking.is_decided
    assert ranking.contenders[1].ratio == pytest.approx(1.3, rel=0.1)


def test_blocks_decide_who_is_first(tmp_path: Path, contribute: Contribute) -> None:
    """In six of seven nights plexus takes half the time of cagnet-1d, but its median over the nights is higher."""
    folder = tmp_path / "runs"
    for launch, night in enumerate((1.0, 1.0, 1.0, 9.0, 9.0, 9.0, 9.0)):
        is_last = launch == 6
        add_runs(folder, "cagnet-1d", {"p": 2}, 0.4 if is_last else night, [launch], block=f"night {launch}")
        grid = {"x": 2, "y": 1, "z": 1}
        add_runs(folder, "plexus", grid, 9.0 if is_last else night / 2, [launch], block=f"night {launch}")
    contribute("Honest", folder)
    (ranking,) = rank_runs(judge(tmp_path / "packs"))
    first, second = ranking.contenders
    assert (first.strategy, second.strategy) == ("plexus", "cagnet-1d") and first.seconds > second.seconds
    assert second.ratio == pytest.approx(2.0, rel=0.1)


def test_blocks_without_a_fastest_configuration_rank_each_once(
    tmp_path: Path, contribute: Contribute
) -> None:
    """In two of three blocks, each of three configurations is faster than the next one."""
    folder = tmp_path / "runs"
    settings = [("cagnet-1d", {"p": 2}), ("plexus", {"x": 2, "y": 1, "z": 1}), ("cagnet-sa-1d", {"p": 2})]
    for launch in range(9):
        for number, (strategy, grid) in enumerate(settings):
            add_runs(folder, strategy, grid, 1.0 + (number + launch) % 3, [launch], block=f"night {launch}")
    contribute("Honest", folder)
    (ranking,) = rank_runs(judge(tmp_path / "packs"))
    assert sorted(each.strategy for each in ranking.contenders) == sorted(name for name, _ in settings)


def test_few_launches_leave_the_order_undecided(tmp_path: Path, contribute: Contribute) -> None:
    folder = tmp_path / "runs"
    add_runs(folder, "cagnet-1d", {"p": 2}, 1.0, range(3))
    add_runs(folder, "plexus", {"x": 2, "y": 1, "z": 1}, 9.0, range(3))
    contribute("Honest", folder)
    (ranking,) = rank_runs(judge(tmp_path / "packs"))
    assert not ranking.is_decided and judge_ratio(ranking.contenders[1].interval) == "undecided"
    assert "1 undecided (an interval needs 4 launches of each)" in ranking.describe_winner()


def test_more_competitors_need_more_launches(tmp_path: Path, contribute: Contribute) -> None:
    """Four launches decide between two configurations, and not among three, which have three pairs."""
    folder = tmp_path / "runs"
    for number, strategy in enumerate(("cagnet-1d", "cagnet-sa-1d", "rdm")):
        add_runs(folder, strategy, {"p": 2}, 1.0 + number, range(4))
    contribute("Honest", folder)
    (three,) = rank_runs(rows := judge(tmp_path / "packs"))
    (two,) = rank_runs(rows[rows["strategy.name"] != "rdm"])
    assert two.is_decided and not three.is_decided
    assert "2 undecided (an interval needs 5 launches of each)" in three.describe_winner()


def test_configuration_is_ranked_by_its_latest_commit(
    honest: Path, tmp_path: Path, contribute: Contribute
) -> None:
    """Runs of the earlier commit are not ranked; plexus ran at one commit, and is ranked by it."""
    later = {"commit": "b" * 40, "started": 1_790_500_000.0, "finished": 1_790_500_060.0}
    add_runs(tmp_path / "later", "cagnet-1d", {"p": 2}, 2.0, **later)
    contribute("Honest", honest)
    again = pack_runs(tmp_path / "again", "Honest", tmp_path / "later").parent
    rows = judge(tmp_path / "packs", again)
    is_earlier = (rows["strategy.name"] == "cagnet-1d") & (rows["provenance.commit"] != later["commit"])
    assert (rows.marks == is_earlier.map({True: "earlier commit", False: ""})).all()
    (ranking,) = rank_runs(rows)
    assert [each.strategy for each in ranking.contenders] == ["plexus", "cagnet-1d"]
    assert [len(each.runs) for each in ranking.contenders] == [6, 6]


def test_launches_of_an_earlier_commit_do_not_stand_for_missing_ones(
    honest: Path, tmp_path: Path, contribute: Contribute
) -> None:
    times = {"started": 1_790_500_000.0, "finished": 1_790_500_060.0}
    add_runs(tmp_path / "later", "cagnet-1d", {"p": 2}, 0.1, [3, 5], commit="b" * 40, **times)
    contribute("Cheater", honest)
    again = pack_runs(tmp_path / "again", "Cheater", tmp_path / "later").parent
    rows = judge(tmp_path / "packs", again)
    assert set(rows.marks[rows["provenance.commit"] == "b" * 40]) == {"launches missing"}
    assert rows.is_ranked.sum() == 12


# Time to a target.


def add_seeds(folder: Path, seeds: list[int], reached: Callable[[int], float | None]) -> None:
    for seed in seeds:
        add_runs(
            folder,
            "cagnet-1d",
            {"p": 2},
            1.0,
            [0],
            spec={"seed": seed, "training": {"target": 0.9, "epochs": 10, "warmup": 2}},
            summary={"seconds_to_target": reached(seed)},
        )


@pytest.mark.parametrize(
    ("seeds", "remark"),
    [
        ([0, 1, 2, 3, 4], ""),
        ([0, 1, 2, 3], "fewer than 5 seeds"),
        ([0, 2, 5, 6, 9], "the seeds are not 0, 1, 2 and so on: others may have been left out"),
    ],
    ids=["all", "few", "chosen"],
)
def test_chosen_seeds_do_not_count(
    seeds: list[int], remark: str, tmp_path: Path, contribute: Contribute
) -> None:
    add_seeds(tmp_path / "runs", seeds, lambda seed: 10.0 + seed)
    (result,) = summarize_targets(build_unverified(tmp_path, contribute))
    assert result.remark == remark
    assert result.seconds == median([10.0 + seed for seed in seeds])


def test_seed_that_misses_the_target_counts(tmp_path: Path, contribute: Contribute) -> None:
    add_seeds(tmp_path / "runs", [0, 1, 2, 3, 4], lambda seed: 10.0 if seed < 2 else None)
    (result,) = summarize_targets(build_unverified(tmp_path, contribute))
    assert (result.seconds, result.reached, result.seeds) == (None, 2, 5)


def build_unverified(tmp_path: Path, contribute: Contribute) -> pd.DataFrame:
    """The rows of runs whose times to a target do not follow from their synthetic tables, without that check."""
    contribute("Honest", tmp_path / "runs")
    rows = judge(tmp_path / "packs")
    return rows.assign(marks=rows.marks.where(rows.marks != "broken", ""))


# Strategies of other packages.


def test_plugin_is_ranked_by_its_certificate(
    synthetic: Any, honest: Path, contribute: Contribute, tmp_path: Path
) -> None:
    """Without a certificate a plugin is uncertified. The certificate also says by which promise it is ranked."""
    code = "d" * 64
    for run in add_runs(honest, "their-strategy", {"p": 2}, 0.5):
        change_record(run, lambda record: record["provenance"].update(strategy_code=code))
    contribute("Plugin", honest)
    rows = judge(tmp_path / "packs")
    assert set(rows.marks[rows["strategy.name"] == "their-strategy"]) == {"uncertified"}

    certificate = make_certificate("serial", "exact", code, "full", ["losses equal serial"]).to_document()
    document = {**certificate, "strategy": "their-strategy", "package": "theirs"}
    document["digest"] = hash_data({key: value for key, value in document.items() if key != "digest"})
    (tmp_path / "certificate.json").write_text(json.dumps(document))
    contribute("Plugin", honest, certificates=[tmp_path / "certificate.json"])
    (ranking,) = rank_runs(judge(tmp_path / "packs"))
    assert [each.strategy for each in ranking.contenders] == ["their-strategy", "cagnet-1d", "plexus"]


def test_certificate_does_not_change_the_promise_of_a_built_in_strategy(
    honest: Path, contribute: Contribute, tmp_path: Path
) -> None:
    add_runs(honest, "pipegcn", {"p": 2}, 0.01)
    code = hash_strategy_code("pipegcn")
    certificate = make_certificate("pipegcn", "exact", code, "full", ["losses equal serial"])
    (tmp_path / "certificate.json").write_text(certificate.to_json())
    contribute("Cheater", honest, certificates=[tmp_path / "certificate.json"])
    exact = [ranking for ranking in rank_runs(judge(tmp_path / "packs")) if ranking.results == "exact"]
    assert [each.strategy for ranking in exact for each in ranking.contenders] == ["cagnet-1d", "plexus"]


@pytest.mark.parametrize(
    ("card", "mark"), [("local", ""), ("frontier", "unchecked card"), ("theirs", "unchecked card")]
)
def test_prediction_by_a_card_that_no_run_checked_is_marked(
    card: str, mark: str, honest: Path, synthetic: Any, contribute: Contribute, tmp_path: Path
) -> None:
    machine = {**synthetic.MACHINE.model_dump(), "name": card}
    spec = synthetic.make_spec("bns-gcn", "products-14m", {"p": 2}, machine=machine)
    synthetic.write_quoted(honest, spec, 1e-3, "predicted")
    contribute("Honest", honest)
    rows = judge(tmp_path / "packs")
    assert set(rows.marks[rows.source == "predicted"]) == {mark}
