"""A pack has everything that was made of its runs, nothing that was made of others, and the same bytes each time."""

import csv
import json
import shutil
import subprocess
from io import BytesIO, StringIO
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from harness.cli import main
from harness.report.pack.archive import read_archive
from harness.report.pack.packing import PackedResults, pack_results
from harness.report.pack.reading import FOLDER
from harness.results.parquet import read_collected
from tests.synthetic_packs import add_runs, change_record

pytestmark = pytest.mark.long


def pack(study: Path, out: Path, figures: Path | None = None) -> PackedResults:
    return pack_results(
        [study / "runs"], "Some Group", out, tables=study / "tables", figures=figures or study / "figures"
    )


@pytest.fixture(scope="module")
def packed(study: Path, tmp_path_factory: pytest.TempPathFactory) -> PackedResults:
    return pack(study, tmp_path_factory.mktemp("packed") / "pack.tar.gz")


@pytest.fixture(scope="module")
def files(packed: PackedResults) -> dict[str, bytes]:
    return read_archive(packed.path, FOLDER)


def test_pack_has_all_runs_tables_figures_and_claims(
    packed: PackedResults, files: dict[str, bytes], study: Path, synthetic: SimpleNamespace
) -> None:
    runs = read_collected(study / "tables", "runs")
    for _, run in runs.iterrows():
        assert json.loads(files[f"runs/{run.run_id}/spec.json"]) == json.loads(run.spec)
    tables = pq.read_table(BytesIO(files["tables/runs.parquet"])).to_pandas()
    assert list(tables.run_id) == list(runs.run_id)
    assert {f"figures/{path.name}" for path in (study / "figures").iterdir()} <= set(files)
    claims = list(csv.DictReader(StringIO(files["claims.csv"].decode())))
    assert [claim["id"] for claim in claims] == [claim["id"] for claim in synthetic.claims()]
    assert claims[0]["command"] == "harness claims --figure plexus-fig8c"
    (environment, *_) = json.loads(files["environment.json"])
    assert environment["versions"] and environment["runs"] >= 1
    assert (packed.runs, packed.claims, packed.left_out) == (len(runs), len(claims), "")
    assert f"{len(runs)} runs of " in files["README.md"].decode()


def test_same_results_give_the_same_bytes(packed: PackedResults, study: Path, tmp_path: Path) -> None:
    assert pack(study, tmp_path / "again.tar.gz").path.read_bytes() == packed.path.read_bytes()


def test_sha256sum_agrees(packed: PackedResults, tmp_path: Path) -> None:
    subprocess.run(["tar", "--extract", "--file", packed.path], cwd=tmp_path, check=True)
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=tmp_path / FOLDER, check=True)


def test_figures_of_other_tables_and_links_are_not_packed(study: Path, tmp_path: Path) -> None:
    figures = Path(shutil.copytree(study / "figures", tmp_path / "figures"))
    (figures / "loss-thesis.svg").write_text("<svg><!-- tables 0123456789abcdef --></svg>")
    (figures / "strong-scaling.txt").unlink()
    (figures / "strong-scaling.txt").symlink_to("/etc/hostname")
    files = read_archive(pack(study, tmp_path / "pack.tar.gz", figures).path, FOLDER)
    assert "figures/strong-scaling.svg" in files
    assert not {"figures/strong-scaling.txt", "figures/loss-thesis.svg"} & set(files)


def test_figures_and_claims_of_other_runs_are_left_out(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command says so, and packs the runs."""
    runs = Path(shutil.copytree(study / "runs", tmp_path / "runs"))
    add_runs(runs, "rdm", {"p": 2}, 1.0, [0])
    places = ["--runs", str(runs), "--tables", str(study / "tables"), "--figures", str(study / "figures")]
    assert main(["pack", "--by", "Some Group", *places, "--out", str(tmp_path / "pack.tar.gz")]) == 0
    assert "Figures and claims are left out" in capsys.readouterr().out
    files = read_archive(tmp_path / "pack.tar.gz", FOLDER)
    assert "claims.csv" not in files and not [name for name in files if name.startswith("figures/")]
    assert len(pq.read_table(BytesIO(files["tables/runs.parquet"]))) == len(list(runs.iterdir()))


def test_tables_name_no_home_folder(tmp_path: Path) -> None:
    (run,) = add_runs(tmp_path / "runs", "serial", {"p": 1}, 1.0, [0])
    change_record(run, lambda record: record["provenance"].update(command="harness run --out /home/ann/runs"))
    none = tmp_path / "none"
    path = pack_results(
        [tmp_path / "runs"], "Some Group", tmp_path / "pack.tar.gz", tables=none, figures=none
    ).path
    files = read_archive(path, FOLDER)
    tables = pq.read_table(BytesIO(files["tables/runs.parquet"])).to_pandas()
    assert list(tables["provenance.command"]) == ["harness run --out ~/runs"]
    assert not [name for name, data in files.items() if b"/home/ann" in data]
