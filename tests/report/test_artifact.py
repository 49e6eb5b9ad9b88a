"""Archives of results are reproducible, and contain the listed files with the right checksums."""

import csv
import hashlib
import json
import subprocess
import tarfile
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.cli import main
from harness.errors import UserError
from harness.report import write_report
from harness.report.artifact import FOLDER, pack_artifact
from harness.results.parquet import read_collected

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def archive(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("artifact")
    report = write_report(study / "tables", folder / "report.html")
    return pack_artifact(ROOT, study / "tables", study / "figures", report, folder / "artifact.tar.gz")


@pytest.fixture(scope="module")
def files(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as packed:
        return {
            member.name.removeprefix(f"{FOLDER}/"): packed.extractfile(member).read()  # type: ignore[union-attr]
            for member in packed
        }


def test_the_same_input_gives_the_same_bytes(archive: Path, study: Path, tmp_path: Path) -> None:
    again = pack_artifact(
        ROOT, study / "tables", study / "figures", archive.with_name("report.html"), tmp_path / "again.tar.gz"
    )
    assert again.read_bytes() == archive.read_bytes()


def test_sha256sum_agrees(archive: Path, tmp_path: Path) -> None:
    subprocess.run(["tar", "--extract", "--file", archive], cwd=tmp_path, check=True)
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=tmp_path / FOLDER, check=True)


def test_every_file_but_the_list_has_its_sum(files: dict[str, bytes]) -> None:
    sums = dict(reversed(line.split("  ")) for line in files["SHA256SUMS"].decode().splitlines())  # type: ignore[arg-type]
    assert set(sums) == set(files) - {"SHA256SUMS"}
    assert all(hashlib.sha256(files[name]).hexdigest() == sum_ for name, sum_ in sums.items())


def test_it_holds_every_run_claim_and_figure(
    files: dict[str, bytes], study: Path, synthetic: SimpleNamespace
) -> None:
    runs = read_collected(study / "tables", "runs")
    assert {f"specs/{run_id}.json" for run_id in runs.run_id} <= set(files)
    assert all(
        json.loads(files[f"specs/{run.run_id}.json"]) == json.loads(run.spec) for _, run in runs.iterrows()
    )
    claims = list(csv.DictReader(StringIO(files["claims.csv"].decode())))
    assert [claim["id"] for claim in claims] == [claim["id"] for claim in synthetic.claims()]
    assert claims[0]["command"] == "harness claims --figure plexus-fig8c"
    assert {f"figures/{path.name}" for path in (study / "figures").iterdir()} <= set(files)
    (environment, *_) = json.loads(files["environment.json"])
    assert environment["versions"] and environment["runs"] >= 1


def test_a_report_of_other_tables_is_refused(study: Path, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("<html></html>")
    words = ["artifact", "--tables", str(study / "tables"), "--figures", str(study / "figures")]
    assert main([*words, "--report", str(tmp_path / "report.html")]) == 2
    with pytest.raises(UserError, match="is not the report of these tables"):
        pack_artifact(
            ROOT, study / "tables", study / "figures", tmp_path / "none.html", tmp_path / "a.tar.gz"
        )
