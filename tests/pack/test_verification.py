"""A pack of real runs holds, other archives are refused, and what is packed is what others may see."""

import json
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from harness.base.errors import UserError
from harness.cli import main
from harness.graph.store.datasets import open_dataset
from harness.registry import hash_strategy_code
from harness.report.pack.archive import SUMS, list_checksums, pack_archive, read_archive
from harness.report.pack.packing import pack_results
from harness.report.pack.reading import ABOUT, FOLDER, SCHEMA, read_pack
from harness.report.pack.verification import BROKEN, CHECKS, HOLDS, UNKNOWN
from harness.spec.dataset import DatasetChoice
from harness.spec.root import find_root
from tests.pack.editing import change_table, find_run, pack, read, verdicts_of, verify
from tests.synthetic_packs import change_record
from tests.synthetic_runs import make_spec, write_failed

ROOT = find_root()
pytestmark = pytest.mark.usefixtures("ranks_at_hand")


def test_real_runs_hold(runs: Path, tmp_path: Path) -> None:
    found = verify(runs, tmp_path)
    assert found.holds and found.pack.contributor == "Some Group" and len(found.runs) == 3
    for strategy in ("cagnet-2d", "graphsage"):
        verdicts = verdicts_of(found, find_run(runs, strategy).name)
        assert verdicts == dict.fromkeys(CHECKS, HOLDS), strategy
    verdicts = verdicts_of(found, find_run(runs, "plexus").name)
    assert set(verdicts.values()) == {HOLDS, UNKNOWN} and verdicts["id"] == verdicts["elements"] == UNKNOWN


def test_a_failed_run_is_not_broken(tmp_path: Path) -> None:
    spec = make_spec("cagnet-1d", "products-14m", {"p": 2})
    write_failed(tmp_path / "runs", spec, "timeout", "TimeoutError", "no word for 30 s")
    found = verify(tmp_path / "runs", tmp_path)
    assert found.holds
    verdicts = verdicts_of(found, spec.run_id)
    assert verdicts["record"] == verdicts["id"] == HOLDS
    assert verdicts["epochs"] == verdicts["environment"] == UNKNOWN


def test_runs_record_which_graph_and_which_code_they_trained(runs: Path) -> None:
    graph = open_dataset(ROOT, DatasetChoice(name="tiny-sbm"))
    for strategy in ("cagnet-2d", "graphsage"):
        provenance = read(find_run(runs, strategy) / "record.json")["provenance"]
        assert provenance["graph_hash"] == graph.graph_hash != ""
        assert provenance["strategy_code"] == hash_strategy_code(strategy) != ""


@pytest.mark.parametrize(
    ("epochs", "seconds", "verdict"),
    [([0], 0.01, HOLDS), ([-1], 5.0, HOLDS), ([0, 1], 0.01, BROKEN), ([0], 0.5, BROKEN)],
    ids=["interrupted", "warm-up", "two of two", "too long"],
)
def test_an_interrupted_rank_is_no_cheat(
    epochs: list[int], seconds: float, verdict: str, copied: Path, tmp_path: Path
) -> None:
    """The scheduler may stop a rank between two readings of the clock, once and for a short time."""

    def interrupt(ledger: pd.DataFrame) -> None:
        first = ledger[ledger["rank_id"] == 0].drop_duplicates("epoch")
        ledger.loc[first.index[first.epoch.isin(epochs)], "seconds"] += seconds

    folder = find_run(copied, "cagnet-2d")
    change_table(folder, "ledger", interrupt)
    assert verdicts_of(verify(copied, tmp_path), folder.name)["ledger"] == verdict


def test_the_same_runs_give_the_same_bytes(runs: Path, tmp_path: Path) -> None:
    for name in ("one", "other"):
        pack(runs, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


# Files that are not those of a pack.


def refusals() -> Iterator[Any]:
    def change(name: str, data: bytes | None, *, right_sums: bool = True) -> Callable[..., dict[str, bytes]]:
        def changed(files: dict[str, bytes]) -> dict[str, bytes]:
            files = {key: value for key, value in files.items() if key != name}
            files |= {} if data is None else {name: data}
            return files | (
                {SUMS: list_checksums({key: files[key] for key in files if key != SUMS})}
                if right_sums
                else {}
            )

        return changed

    about = json.dumps({"schema": SCHEMA, "contributor": "<b>Some</b>"}).encode()
    yield pytest.param(change("runs/a/b.py", b""), "not a file of a pack", id="a program")
    yield pytest.param(change("runs/record.json", b""), "not a file of a pack", id="a file elsewhere")
    yield pytest.param(change(ABOUT, None), "pack.json is missing", id="no contributor")
    yield pytest.param(change(ABOUT, about), "not accepted as a contributor", id="markup")
    yield pytest.param(change(ABOUT, b"{"), "pack.json", id="no document")
    yield pytest.param(change(ABOUT, b'{"schema": 9}'), "does not have the schema", id="another schema")
    yield pytest.param(change(ABOUT, b"{}", right_sums=False), "was changed", id="a changed file")
    yield pytest.param(change(SUMS, b"", right_sums=False), "exactly the other files", id="no sums")


@pytest.mark.parametrize(("change", "reason"), list(refusals()))
def test_another_archive_is_refused(
    change: Callable[..., dict[str, bytes]], reason: str, runs: Path, tmp_path: Path
) -> None:
    files = change(read_archive(pack(runs, tmp_path / "pack.tar.gz"), FOLDER))
    (tmp_path / "changed.tar.gz").write_bytes(pack_archive(FOLDER, files))
    with pytest.raises(UserError, match=f"changed.tar.gz is refused: .*{reason}"):
        read_pack(tmp_path / "changed.tar.gz")


# What is packed.


def test_home_folders_are_not_packed(copied: Path, tmp_path: Path) -> None:
    run = find_run(copied, "cagnet-2d")
    command = "harness run --out /home/ann/runs --plan=/Users/bob/plan.json --root /root"
    change_record(run, lambda record: record["provenance"].update(command=command))
    found = verify(copied, tmp_path)
    assert found.holds
    files = read_archive(tmp_path / "pack.tar.gz", FOLDER)
    packed = json.loads(files[f"runs/{run.name}/record.json"])["provenance"]["command"]
    assert packed == "harness run --out ~/runs --plan=~/plan.json --root ~"


def test_strange_files_of_a_run_folder_are_not_packed(copied: Path, tmp_path: Path) -> None:
    (find_run(copied, "cagnet-2d") / "id_rsa").write_text("secret")
    (find_run(copied, "plexus") / "utilisation.parquet").symlink_to("/etc/passwd")
    with tarfile.open(pack(copied, tmp_path / "pack.tar.gz")) as packed:
        names = [name for name in packed.getnames() if name.startswith(f"{FOLDER}/runs/")]
    assert names and not [name for name in names if "id_rsa" in name or "utilisation" in name]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--by", "<b>", "--runs", "{runs}"], "not accepted as a contributor"),
        (["--by", "Some Group", "--runs", "{runs}", "{runs}"], "Move one of them away"),
        (["--by", "Some Group", "--runs", "{empty}"], "no runs in"),
    ],
)
def test_unpackable_runs_are_reported(
    words: list[str], reason: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    told = [word.format(runs=runs, empty=tmp_path / "empty") for word in words]
    assert main(["pack", *told, "--out", str(tmp_path / "s.tar.gz")]) == 2
    assert reason in capsys.readouterr().err


def test_a_run_of_a_file_is_not_packed(copied: Path, tmp_path: Path) -> None:
    """Others do not have the file, and its path tells where it is."""
    run = find_run(copied, "plexus")
    spec = read(run / "spec.json")
    spec["strategy"]["name"] = "mine.py:Mine"
    (run / "spec.json").write_text(json.dumps(spec))
    done = pack_results(
        [copied], "us", tmp_path / "pack.tar.gz", tables=tmp_path / "none", figures=tmp_path / "none"
    )
    (reason,) = done.skipped
    assert "1 run trained with a strategy in a file, such as mine.py:Mine" in reason
    assert run.name not in read_pack(done.path).runs
    for other in copied.iterdir():
        if other != run:
            shutil.rmtree(other)
    with pytest.raises(UserError, match=r"no runs .* mine\.py:Mine, which others do not have"):
        pack_results(
            [copied], "us", tmp_path / "none.tar.gz", tables=tmp_path / "none", figures=tmp_path / "none"
        )


def test_a_damaged_record_is_not_packed_and_named(copied: Path, tmp_path: Path) -> None:
    run = find_run(copied, "plexus")
    (run / "record.json").write_text("{")
    done = pack_results(
        [copied], "us", tmp_path / "pack.tar.gz", tables=tmp_path / "none", figures=tmp_path / "none"
    )
    assert run.name[:8] in " ".join(done.skipped) and run.name not in read_pack(done.path).runs


def test_the_exit_code_says_whether_it_holds(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(pack(copied, tmp_path / "good.tar.gz"))]) == 0
    change_record(
        find_run(copied, "cagnet-2d"), lambda record: record["summary"].update(epoch_seconds_median=1e-3)
    )
    assert main(["verify", str(pack(copied, tmp_path / "bad.tar.gz")), "--json"]) == 1
    document = json.loads(capsys.readouterr().out.partition("\n{")[2].join(["{", ""]))
    assert document["holds"] is False and document["contributor"] == "Some Group"
