"""What a pack says of its graphs and of the code of its strategies is compared with cards, code and certificates.

The strategy `theirs` of another package is not installed here. Its runs are runs of a built-in strategy, renamed.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import harness
from harness.base.errors import UserError
from harness.cli import main
from harness.report.pack.verification import BROKEN, HOLDS, UNKNOWN, Verification
from harness.results.check_certificate import MAX_BYTES, CheckCertificate, make_certificate, parse_certificate
from harness.spec.root import find_root
from harness.spec.spec import digest, hash_data
from tests.pack.editing import pack, read, verify_file, write_pack
from tests.synthetic_packs import change_record

ROOT = find_root()
CODE, OTHER_CODE = "c0de" * 16, "dead" * 16
CHECKS = ["losses equal serial", "losses equal serial", "trains"]
pytestmark = pytest.mark.usefixtures("ranks_at_hand")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, ranks_at_hand: None) -> Path:
    """The folder of a run of a built-in strategy."""
    folder = tmp_path_factory.mktemp("contributor") / "runs"
    settings = {"training.epochs": 1, "training.warmup": 0}
    harness.run("cagnet-1d", "tiny-sbm", 2, settings=settings, out=folder)
    (found,) = folder.iterdir()
    return found


@pytest.fixture
def built_in(run: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(run, tmp_path / "runs" / run.name))


@pytest.fixture
def theirs(built_in: Path) -> Path:
    """The run of a strategy that is not installed here."""
    change_record(built_in, lambda record: record["provenance"].update(strategy_code=CODE))
    return change_spec(built_in, lambda spec: spec["strategy"].update(name="theirs", params={}))


def change_spec(folder: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """Change the spec of a run, and give the run its name by that spec."""
    spec = read(folder / "spec.json")
    change(spec)
    (folder / "spec.json").write_text(json.dumps(spec))
    change_record(folder, lambda record: record.update(run_id=digest(spec)))
    return folder.rename(folder.parent / digest(spec))


def make(code: str = CODE, extent: Any = "full", strategy: str = "theirs") -> dict[str, Any]:
    """The document of a whole certificate, of a strategy that need not be installed."""
    certificate = make_certificate("serial", "exact", code, extent, CHECKS).to_document()
    return sign({**certificate, "strategy": strategy, "package": "their-package", "package_version": "2.1"})


def sign(document: dict[str, Any]) -> dict[str, Any]:
    """Give a document the digest of its content."""
    rest = {key: value for key, value in document.items() if key != "digest"}
    return {**rest, "digest": hash_data(rest)}


def write_certificate(folder: Path, document: dict[str, Any], name: str = "certificate.json") -> Path:
    (folder / name).write_text(json.dumps(document))
    return folder / name


def verify(folder: Path, *certificates: Path, root: Path = ROOT) -> Verification:
    """Pack the runs next to a run with certificates, and verify the pack."""
    return verify_file(pack(folder.parent, folder.parent.parent / "pack.tar.gz", *certificates), root)


def verify_archive(run: Path, files: dict[str, bytes], out: Path) -> Verification:
    """Verify an archive with a run and other files, which need not be accepted by `pack_results`."""
    runs = {f"runs/{run.name}/{path.name}": path.read_bytes() for path in run.iterdir()}
    write_pack({**runs, **files}, out)
    return verify_file(out)


def find_answer(found: Verification, check: str) -> tuple[str, str]:
    (answer,) = (result for result in found.results if result.check == check)
    return answer.verdict, answer.reason


# The check `certificate`.


@pytest.mark.long
def test_a_full_certificate_of_the_code_that_ran_holds(theirs: Path, tmp_path: Path) -> None:
    found = verify(theirs, write_certificate(tmp_path, make()))
    assert find_answer(found, "certificate") == (HOLDS, "")
    assert find_answer(found, "elements")[0] == UNKNOWN, "it is not installed"
    (certificate,) = found.pack.certificates.values()
    assert isinstance(certificate, CheckCertificate)
    assert (certificate.strategy, certificate.package, certificate.package_version) == (
        "theirs",
        "their-package",
        "2.1",
    )
    assert (certificate.checks, certificate.cases) == (3, {"losses equal serial": 2, "trains": 1})


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (None, "the pack has no certificate of theirs"),
        (make(OTHER_CODE), "is of other code than the run's"),
        (make(extent="quick"), "is of a smaller check, quick"),
        (make(extent="usual"), "is of a smaller check, usual"),
    ],
    ids=["none", "other code", "quick", "usual"],
)
def test_a_certificate_that_does_not_fit_leaves_a_run_unproven(
    document: dict[str, Any] | None, reason: str, theirs: Path, tmp_path: Path
) -> None:
    certificates = [] if document is None else [write_certificate(tmp_path, document)]
    found = verify(theirs, *certificates)
    verdict, told = find_answer(found, "certificate")
    assert verdict == UNKNOWN and told.startswith("uncertified: ") and reason in told
    assert found.holds


def test_a_certificate_of_one_strategy_proves_no_other(
    theirs: Path, built_in: Path, run: Path, tmp_path: Path
) -> None:
    shutil.copytree(run, theirs.parent / run.name)
    found = verify(theirs, write_certificate(tmp_path, make(strategy="cagnet-1d")))
    answers = {result.run: result for result in found.results if result.check == "certificate"}
    assert answers[theirs.name].reason == "uncertified: the pack has no certificate of theirs"
    assert answers[run.name].verdict == HOLDS


def test_built_in_strategies_need_no_certificate(built_in: Path) -> None:
    assert find_answer(verify(built_in), "certificate") == (HOLDS, "")


def test_a_built_in_strategy_of_another_version_cannot_be_verified(built_in: Path, tmp_path: Path) -> None:
    change_record(built_in, lambda record: record["provenance"].update(strategy_code=OTHER_CODE))
    verdict, reason = find_answer(verify(built_in), "certificate")
    assert verdict == UNKNOWN and "another version than the installed one" in reason
    certificate = write_certificate(tmp_path, make(OTHER_CODE, strategy="cagnet-1d"))
    assert find_answer(verify(built_in, certificate), "certificate")[0] == UNKNOWN


def test_records_without_these_hashes_cannot_be_verified(built_in: Path) -> None:
    def forget(record: dict[str, Any]) -> None:
        for key in ("graph_hash", "strategy_code"):
            del record["provenance"][key]

    change_record(built_in, forget)
    found = verify(built_in)
    for check in ("graph", "certificate"):
        verdict, reason = find_answer(found, check)
        assert verdict == UNKNOWN and "earlier version" in reason
    assert found.holds


# Damaged and forged certificates.

EDITED = {**make(extent="quick"), "extent": "full"}
DAMAGED = {
    "edited": (json.dumps(EDITED).encode(), "its digest does not fit the rest"),
    "no document": (b"{", "cannot be read as JSON"),
    "a list": (b"[]", "must be a mapping"),
    "a key twice": (b'{"schema": 1, "schema": 1}', "occurs twice"),
    "too large": (json.dumps(make()).encode() + b" " * MAX_BYTES, r"more than 65,536 bytes"),
    "another key": (json.dumps(sign({**make(), "note": "x"})).encode(), "note is not a key"),
    "another schema": (json.dumps(sign({**make(), "schema": 2})).encode(), "schema"),
    "no digest": (json.dumps({**make(), "digest": ""}).encode(), "digest"),
    "fewer checks": (json.dumps(sign({**make(), "checks": 2})).encode(), "add up"),
    "no check": (json.dumps(sign({**make(), "cases": {}, "checks": 1})).encode(), "cases"),
    "markup": (json.dumps(sign({**make(), "cases": {"<b>": 3}})).encode(), "cases"),
    "text for a number": (json.dumps(sign({**make(), "checks": "3"})).encode(), "checks"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_certificate_is_neither_packed_nor_accepted(
    kind: str, theirs: Path, tmp_path: Path
) -> None:
    data, reason = DAMAGED[kind]
    (tmp_path / "certificate.json").write_bytes(data)
    with pytest.raises(UserError, match=reason):
        verify(theirs, tmp_path / "certificate.json")
    with pytest.raises(UserError, match=rf"forged.tar.gz is refused: .*{reason}"):
        verify_archive(theirs, {"certificates/theirs.json": data}, tmp_path / "forged.tar.gz")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("certificates/theirs.json", None),
        ("certificates/other.json", "is the certificate of another strategy, 'theirs'"),
        ("certificates/theirs.py", "not a file of a pack"),
        ("certificates/deep/theirs.json", "not a file of a pack"),
        ("theirs.json", "not a file of a pack"),
    ],
)
def test_a_certificate_has_the_name_of_its_strategy(
    name: str, reason: str | None, theirs: Path, tmp_path: Path
) -> None:
    files = {name: json.dumps(make()).encode()}
    if reason is None:
        assert verify_archive(theirs, files, tmp_path / "archive.tar.gz").pack.certificates
        return
    with pytest.raises(UserError, match=reason):
        verify_archive(theirs, files, tmp_path / "archive.tar.gz")


def test_only_one_certificate_of_a_strategy_with_runs_is_packed(theirs: Path, tmp_path: Path) -> None:
    certificate, other = (
        write_certificate(tmp_path, make()),
        write_certificate(tmp_path, make(), "again.json"),
    )
    with pytest.raises(UserError, match="the second certificate of theirs"):
        verify(theirs, certificate, other)
    with pytest.raises(UserError, match=r"'others', of which no run is packed\. Packed are runs of theirs"):
        verify(theirs, write_certificate(tmp_path, make(strategy="others")))
    with pytest.raises(UserError, match=r"missing.json cannot be read"):
        verify(theirs, tmp_path / "missing.json")


def test_the_command_packs_certificates_and_prints_them(
    theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    certificate, out = write_certificate(tmp_path, make()), str(tmp_path / "s.tar.gz")
    words = [
        "--by",
        "Some Group",
        "--runs",
        str(theirs.parent),
        "--certificate",
        str(certificate),
        "--out",
        out,
    ]
    assert main(["pack", *words]) == 0
    capsys.readouterr()
    assert main(["verify", out, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [
        parse_certificate(json.dumps(each).encode(), "it").strategy for each in document["certificates"]
    ] == ["theirs"]


# The check `graph`.


def test_the_graph_of_the_name_holds(built_in: Path) -> None:
    assert find_answer(verify(built_in), "graph") == (HOLDS, "")


def test_a_swapped_hash_of_the_graph_is_found(built_in: Path) -> None:
    change_record(built_in, lambda record: record["provenance"].update(graph_hash=OTHER_CODE))
    found = verify(built_in)
    verdict, reason = find_answer(found, "graph")
    assert verdict == BROKEN and "its graph is not the tiny-sbm of the card here" in reason
    assert not found.holds


def test_a_small_graph_under_the_name_of_a_large_one_is_found(built_in: Path) -> None:
    renamed = change_spec(built_in, lambda spec: spec["dataset"].update(name="rmat-21"))
    assert find_answer(verify(renamed), "graph")[0] == BROKEN


def test_another_version_may_make_another_graph(built_in: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        record["provenance"].update(graph_hash=OTHER_CODE)
        record["provenance"]["versions"]["parallel-gnn-harness"] = "0.0.1"

    change_record(built_in, change)
    verdict, reason = find_answer(verify(built_in), "graph")
    assert verdict == UNKNOWN and "another version" in reason


@pytest.mark.parametrize("name", ["no-such-graph", "ogbn-papers100M-of-mine", "no-such-graph@1-2"])
def test_an_unknown_graph_cannot_be_verified(name: str, built_in: Path) -> None:
    renamed = change_spec(built_in, lambda spec: spec["dataset"].update(name=name))
    verdict, reason = find_answer(verify(renamed), "graph")
    assert verdict == UNKNOWN and "unknown here" in reason


def test_an_imported_graph_of_the_name_may_be_another(
    built_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HARNESS_DATASETS", raising=False)
    root = tmp_path / "project"
    for folder in ("catalog", "imported"):
        (root / "datasets" / folder).mkdir(parents=True)
    card = (ROOT / "datasets" / "catalog" / "tiny-sbm.yaml").read_text().replace("seed: 0", "seed: 1")
    place = root / "datasets" / "imported" / "tiny-sbm.yaml"
    place.write_text(card)
    verdict, reason = find_answer(verify(built_in, root=root), "graph")
    assert verdict == UNKNOWN and "imported here" in reason
    place.rename(root / "datasets" / "catalog" / "tiny-sbm.yaml")
    assert find_answer(verify(built_in, root=root), "graph")[0] == BROKEN
