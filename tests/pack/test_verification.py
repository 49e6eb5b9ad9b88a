"""A pack of real runs holds, and every kind of cheating is found by the check that is made for it.

The cheats change the files of a run folder and pack it again with right checksums, as a cheating contributor would.
"""

import json
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

import harness
from harness.cli import main
from harness.errors import UserError
from harness.pack.archive import SUMS, list_checksums, pack_archive, read_archive
from harness.pack.packing import pack_results
from harness.pack.reading import ABOUT, FOLDER, SCHEMA, read_pack
from harness.pack.verification import BROKEN, CHECKS, HOLDS, UNKNOWN, Verification, verify_pack
from harness.registry import hash_strategy_code
from harness.spec.dataset import DatasetChoice
from harness.spec.root import find_root
from harness.store.datasets import open_dataset
from tests.synthetic_packs import change_record
from tests.synthetic_runs import make_spec, write_failed

ROOT = find_root()
SETTINGS = {"training.epochs": 2, "training.warmup": 1}
pytestmark = pytest.mark.usefixtures("ranks_at_hand")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, ranks_at_hand: None) -> Path:
    """The folders of a full-graph run, of a run on mini-batches, and of a predicted run."""
    folder = tmp_path_factory.mktemp("contributor") / "runs"
    harness.run("cagnet-2d", "tiny-sbm", 2, settings=SETTINGS, out=folder)
    harness.run("graphsage", "tiny-sbm", 2, settings={**SETTINGS, "training.batch": 64}, out=folder)
    harness.predict("plexus", "tiny-sbm", 2, out=folder)
    return folder


@pytest.fixture
def copied(runs: Path, tmp_path: Path) -> Path:
    """A copy of the folder, to be changed."""
    return Path(shutil.copytree(runs, tmp_path / "runs"))


def find_run(runs: Path, strategy: str) -> Path:
    found = [each for each in runs.iterdir() if read(each / "spec.json")["strategy"]["name"] == strategy]
    return found[0]


def read(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(path.read_text())
    return data


def pack(runs: Path, out: Path, *proofs: Path) -> Path:
    none = out.parent / "none"
    return pack_results([runs], "Some Group", out, tables=none, figures=none, proofs=proofs).path


def verify_file(path: Path, root: Path = ROOT) -> Verification:
    return verify_pack(read_pack(path), root)


def verify(runs: Path, tmp_path: Path) -> Verification:
    return verify_file(pack(runs, tmp_path / "pack.tar.gz"))


def verdicts_of(found: Verification, run: str) -> dict[str, str]:
    return {result.check: result.verdict for result in found.results if result.run == run}


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
        first = ledger[ledger["rank"] == 0].drop_duplicates("epoch")
        ledger.loc[first.index[first.epoch.isin(epochs)], "seconds"] += seconds

    folder = find_run(copied, "cagnet-2d")
    change_table(folder, "ledger", interrupt)
    assert verdicts_of(verify(copied, tmp_path), folder.name)["ledger"] == verdict


def test_the_same_runs_give_the_same_bytes(runs: Path, tmp_path: Path) -> None:
    for name in ("one", "other"):
        pack(runs, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


# Cheats: each changes the folder of a run.


def change_table(folder: Path, name: str, change: Callable[[pd.DataFrame], pd.DataFrame | None]) -> None:
    path = folder / f"{name}.parquet"
    table = pq.read_table(path)
    frame = table.to_pandas()
    changed = change(frame)
    frame = frame if changed is None else changed
    pq.write_table(type(table).from_pandas(frame, table.schema, preserve_index=False), path)


def halve_time(folder: Path) -> None:
    change_record(folder, lambda record: record["summary"].update(epoch_seconds_median=1e-3))


def halve_times_of_epochs(folder: Path) -> None:
    """The summary agrees with the epochs again, but the ledger does not."""

    def halve(epochs: pd.DataFrame) -> None:
        epochs["seconds"] /= 2

    change_table(folder, "epochs", halve)
    change_summary(folder)


def change_summary(folder: Path) -> None:
    from harness.results.record import read_record
    from harness.results.run_summary import summarize_tables
    from harness.results.schema import RUN_TABLES

    record = read_record(folder)
    summary = summarize_tables({name: record.rows(name).to_pandas() for name in RUN_TABLES})
    change_record(folder, lambda data: data["summary"].update(summary))


def send_less(folder: Path) -> None:
    """The summary agrees with the ledger again, but the formula does not."""

    def divide(ledger: pd.DataFrame) -> None:
        for name in ("words_payload", "words_received"):
            ledger[name] //= 2

    change_table(folder, "ledger", divide)
    change_summary(folder)


def name_another_spec(folder: Path) -> None:
    spec = read(folder / "spec.json")
    spec["model"]["hidden"] *= 2
    (folder / "spec.json").write_text(json.dumps(spec))


def drop_a_rank(folder: Path) -> None:
    change_table(folder, "ledger", lambda ledger: ledger[ledger["rank"] == 0])
    change_table(folder, "epochs", lambda epochs: epochs[epochs["rank"] == 0])
    change_summary(folder)


def drop_an_epoch(folder: Path) -> None:
    """The slowest epoch is left out, and the summary agrees with the others."""
    for name in ("ledger", "epochs", "accuracy"):
        change_table(folder, name, lambda table: table[table.epoch != 1])
    change_summary(folder)


def name_a_distant_epoch(folder: Path) -> None:
    """To list all epochs before it would take more memory than there is."""

    def rename(epochs: pd.DataFrame) -> None:
        epochs.loc[epochs.epoch == 1, "epoch"] = 1 << 62

    change_table(folder, "epochs", rename)


def hide_machine(folder: Path) -> None:
    change_record(folder, lambda record: record["provenance"].update(cpu="", versions={}))


def reverse_time(folder: Path) -> None:
    change_record(folder, lambda record: record["provenance"].update(finished=1.0, started=2.0))


def tell_a_secret(folder: Path) -> None:
    change_record(folder, lambda record: record["provenance"].update(command="harness run --api-key=abc"))


def write_text_for_number(folder: Path) -> None:
    change_record(folder, lambda record: record["summary"].update(final_loss="small"))


def write_impossible_key(folder: Path) -> None:
    def rename(ledger: pd.DataFrame) -> None:
        ledger["tensor"] = "<script>"

    change_table(folder, "ledger", rename)


def truncate_table(folder: Path) -> None:
    path = folder / "ledger.parquet"
    path.write_bytes(path.read_bytes()[:100])


CHEATS: dict[Callable[[Path], None], str] = {
    halve_time: "summary",
    halve_times_of_epochs: "ledger",
    send_less: "elements",
    name_another_spec: "id",
    drop_a_rank: "epochs",
    drop_an_epoch: "epochs",
    name_a_distant_epoch: "epochs",
    hide_machine: "environment",
    reverse_time: "environment",
    tell_a_secret: "privacy",
    write_text_for_number: "record",
    write_impossible_key: "elements",
    truncate_table: "record",
}


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.__name__)
def test_a_cheat_is_found(cheat: Callable[[Path], None], copied: Path, tmp_path: Path) -> None:
    run = find_run(copied, "cagnet-2d")
    cheat(run)
    pack_unchecked(copied, tmp_path / "pack.tar.gz")
    found = verify_file(tmp_path / "pack.tar.gz")
    assert not found.holds
    assert verdicts_of(found, run.name)[CHEATS[cheat]] == BROKEN
    others = [each.name for each in copied.iterdir() if each != run]
    assert all(BROKEN not in verdicts_of(found, each).values() for each in others)


def pack_unchecked(runs: Path, out: Path) -> None:
    """Pack the folder of runs as `pack_results` does, without reading it."""
    files = {
        f"runs/{path.relative_to(runs)}": path.read_bytes() for path in runs.rglob("*") if path.is_file()
    }
    write_pack(files, out)


def write_pack(files: dict[str, bytes], out: Path) -> None:
    about = {"schema": SCHEMA, "contributor": "Some Group", "harness": harness.__version__}
    files = {ABOUT: json.dumps(about).encode()} | files
    out.write_bytes(pack_archive(FOLDER, files | {SUMS: list_checksums(files)}))


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
    yield pytest.param(change(ABOUT, about), "no accepted contributor", id="markup")
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
def test_what_cannot_be_packed_is_said(
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
    with pytest.raises(UserError, match=r"mine\.py:Mine, which others do not have"):
        pack(copied, tmp_path / "pack.tar.gz")


def test_the_exit_code_says_whether_it_holds(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(pack(copied, tmp_path / "good.tar.gz"))]) == 0
    halve_time(find_run(copied, "cagnet-2d"))
    assert main(["verify", str(pack(copied, tmp_path / "bad.tar.gz")), "--json"]) == 1
    document = json.loads(capsys.readouterr().out.partition("\n{")[2].join(["{", ""]))
    assert document["holds"] is False and document["contributor"] == "Some Group"
