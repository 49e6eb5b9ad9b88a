"""A record, a spec, a plan, a figure or a name of others is data: it runs nothing, leads nowhere and forges nothing."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.base.errors import UserError
from harness.experiment.requests import make_spec
from harness.graph.sources.remote import MIRROR, RemoteFile
from harness.registry import load_installed_strategy
from harness.report.figures.drawing import file_stem
from harness.report.pack.archive import pack_archive
from harness.results.record import read_record, write_record
from harness.runtime.provenance import collect_provenance, is_dirty
from harness.runtime.recorded_environment import NAMES, UNLISTED
from harness.spec.dataset import DatasetChoice
from harness.spec.machine_card import ALLOCATOR, MachineCard, list_machines, load_machine_card
from tests.untrusted.command import ROOT, say

ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b1m\u202eevil\r\nffffffff  forged  ok\u2028x\x7f"
SECRET = "hunter2-is-the-word"


@pytest.fixture
def evil(project: Path) -> Iterator[Path]:
    """The file of a strategy, which leaves a mark when it is run."""
    path = project / "evil.py"
    path.write_text(f"open({str(project / 'RAN')!r}, 'w')\nclass Evil: pass\n")
    yield path
    path.unlink()
    assert not (project / "RAN").exists()


def spec_of(**changes: Any) -> dict[str, Any]:
    asked = {"strategy": "serial", "dataset": "tiny-sbm"}
    return {**make_spec(ROOT, asked, "the test").model_dump(mode="json"), **changes}


@pytest.fixture
def foreign(project: Path, synthetic: SimpleNamespace) -> Iterator[Any]:
    """`foreign(spec, label)`: the folder of a record that somebody else made."""
    runs = project / "results/runs"

    def make(spec: dict[str, Any], **changes: Any) -> Path:
        own = synthetic.make_spec("serial", "tiny-sbm", {"p": 1})
        tables = synthetic.make_tables(own, 0.01, 0.0)
        record = {**synthetic.make_record(own, tables), "run_id": "0123456789abcdef", **changes}
        return write_record(runs, spec, record, tables)

    yield make
    shutil.rmtree(runs)
    runs.mkdir()


def test_reading_a_record_runs_no_file_that_it_names(foreign: Any, evil: Path) -> None:
    folder = foreign(spec_of(strategy={"name": f"{evil}:Evil", "params": {"a": 1}}))
    for words in (
        ["runs", "show", folder],
        ["runs", "show", folder, "--json"],
        ["runs", "list"],
        ["runs", "emulate", folder],
        ["runs", "emulate", folder, "--strategy", "serial"],
        ["compare", folder, folder],
        ["collect"],
        ["runs", "prune", "--status", "ok"],
    ):
        say(*words)
    for name in (f"{evil}:Evil", "../evil.py:Evil", "os:system", ""):
        with pytest.raises(UserError, match="unknown"):
            load_installed_strategy(name)


def test_no_label_or_error_reaches_the_terminal_raw(foreign: Any) -> None:
    failure = {"rank": 0, "type": f"T{ESCAPES}", "message": ESCAPES, "trace": ESCAPES}
    folder = foreign(spec_of(), label=f"mine{ESCAPES}", status="failed", error=failure)
    for words in (["runs", "list"], ["runs", "show", folder], ["runs", "prune", "--failed"], ["collect"]):
        said = say(*words)
        assert said.code == 0
        for line in (said.out + said.err).splitlines():
            assert line.isprintable(), line
            assert not line.startswith("ffffffff")
    foreign({"strategy": {"name": ESCAPES}}, schema=-1, label=ESCAPES)
    for words in (["runs", "list"], ["runs", "show", ESCAPES], ["list", ESCAPES], ["data", "info", ESCAPES]):
        said = say(*words)
        assert all(line.isprintable() for line in (said.out + said.err).splitlines())


@pytest.mark.parametrize(
    "settings",
    [
        {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "core.fsmonitor",
            "GIT_CONFIG_VALUE_0": "touch X;false",
        },
        *({name: "x"} for name in ("LD_PRELOAD", "PYTHONPATH", "PATH", "BASH_ENV", "NCCL_NET_PLUGIN")),
        *({name: "x"} for name in ("PYTHONSTARTUP", "HEAPPROFILE", "malloc_top_pad_", "MALLOC_", "")),
        {"MALLOC_CONF": "prof:true,prof_prefix:/home/me/.bashrc"},
        {"MALLOC_TOP_PAD_": "1\nLD_PRELOAD=x"},
    ],
)
def test_a_spec_sets_no_variable_but_those_of_an_allocator(project: Path, settings: dict[str, str]) -> None:
    spec = spec_of()
    spec["machine"]["allocator"] = settings
    (project / "spec.json").write_text(json.dumps(spec))
    said = say("run", "--spec", project / "spec.json")
    assert said.code == 2 and "machine.allocator" in said.err


def test_every_setting_of_the_cards_is_accepted_and_recorded() -> None:
    cards: list[MachineCard] = [load_machine_card(ROOT, name) for name in list_machines(ROOT)]
    assert {name for card in cards for name in card.allocator} <= ALLOCATOR & NAMES
    of_ranks = {
        name for card in cards if card.slurm for name in (*card.slurm.environment, *card.slurm.fabric)
    }
    assert of_ranks - {"MPICH_GPU_SUPPORT_ENABLED"} <= NAMES


def test_git_runs_nothing_that_a_repository_or_the_environment_configures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {mark}\nexit 1\n")
    program.chmod(0o755)
    root = tmp_path / "root"
    root.mkdir()
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    (root / "file").touch()
    for key, value in (("core.fsmonitor", program), ("core.hooksPath", tmp_path), ("core.pager", program)):
        subprocess.run(["git", "-C", str(root), "config", key, str(value)], check=True)
    shutil.copy(program, tmp_path / "post-index-change")
    variables = {"COUNT": "1", "KEY_0": "core.fsmonitor", "VALUE_0": str(program)}
    for name, value in variables.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert is_dirty(root) is False, "the repository was read, and not that of GIT_DIR"
    assert not mark.exists()


HOSTILE_NAMES = [
    *("tiny-sbm@1/64$(touch P)", "tiny-sbm@1/2;id", "tiny-sbm@1/2 x", "tiny-sbm@`id`", "tiny-sbm@../../x"),
    *(
        "tiny-sbm@1/2\nx",
        "tiny-sbm@1/2\n",
        "tiny-sbm@",
        "tiny-sbm@1/2@3",
        "tiny-sbm@'",
        "tiny-sbm@1|2",
        "tiny-sbm@\0",
    ),
    *(
        "$(id)",
        "a;b",
        "a b",
        "-rf",
        "../x",
        "a/b",
        "a\n",
        "",
        ".",
        "~",
        "a\x1b",
        "a" * 101,
        "tiny-sbm@" + "1" * 200,
    ),
]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_name_of_a_dataset_is_safe_in_a_shell_and_as_a_file(project: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"name|scale|characters"):
        DatasetChoice(name=name)
    path = project / "workflows/experiments/hostile.yaml"
    run = {"strategy": "serial", "dataset": name}
    path.write_text(json.dumps({"name": "hostile", "runs": [run]}))
    assert say("plan", "--experiment", path).code == 2
    path.unlink()


def test_every_value_of_a_rule_is_quoted_for_its_shell() -> None:
    """Or it is a parameter that is several words, which Python quotes one by one."""
    composed = {"params.order", "params.extra", "params.predictions", "params.quick"}
    found = 0
    for path in (ROOT / "workflows").rglob("*.smk"):
        text = path.read_text()
        shells = re.findall(r"^    shell:\n((?:        .*\n)+)", text, flags=re.MULTILINE)
        assert len(shells) == len(re.findall(r"^    shell:", text, flags=re.MULTILINE))
        lines = [*shells, *re.findall(r"^APPENDING = .*$", text, flags=re.MULTILINE)]
        for field in re.findall(r"\{\{?([^{}]+)\}\}?", "\n".join(lines)):
            found += 1
            assert field in composed | {"APPENDING"} or field.endswith(":q"), f"{path.name}: {field}"
    assert found > 30


def test_no_secret_of_the_environment_or_of_a_command_goes_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synthetic: SimpleNamespace
) -> None:
    hiding = (
        "SLURM_JWT",
        "NCCL_AUTH_TOKEN",
        "TORCH_HUB_TOKEN",
        "FI_KEY",
        "HARNESS_TOKEN",
        "CUDA_VISIBLE_TOKEN",
        "AWS_X",
    )
    for name in hiding:
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setattr("sys.argv", ["/bin/harness", "external", "run", "--", "prog", f"--api-key={SECRET}"])
    told = collect_provenance(tmp_path)
    assert SECRET not in json.dumps(told)
    assert told["env"]["NCCL_DEBUG"] == "WARN"
    assert told["env"]["NCCL_AUTH_TOKEN"] == UNLISTED and "SLURM_JWT" not in told["env"]
    spec = synthetic.make_spec("serial", "tiny", {"p": 1})
    failure = {"rank": 0, "type": "E", "message": f"https://me:{SECRET}@host/x", "trace": f"token={SECRET}"}
    tables = synthetic.make_tables(spec, 0.01, 0.0)
    record = synthetic.make_record(spec, tables, status="failed", error=failure)
    folder = write_record(tmp_path / "runs", spec.model_dump(mode="json"), record, {})
    assert SECRET not in (folder / "record.json").read_text()
    assert read_record(folder).record["run_id"] == spec.run_id


def test_a_password_in_a_url_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = RemoteFile(url="https://host.example/file", file="file")
    for base in (
        f"https://me:{SECRET}@mirror",
        f"https://{SECRET}@mirror",
        f"http://me:[{SECRET}@x",
        f"ftp://m:{SECRET}@x",
    ):
        monkeypatch.setenv(MIRROR, base)
        with pytest.raises(UserError) as refusal:
            _ = remote.request_url
        assert SECRET not in str(refusal.value)
    monkeypatch.delenv(MIRROR)
    assert SECRET not in RemoteFile(url=f"https://h/f?a=b&token={SECRET}", file="f").display_url


SCRIPT = "<script>alert(1)</script>"


@pytest.mark.parametrize("run_id", ["../../x", "..", "a\0", "", "-x", "a\n", ESCAPES, "x" * 200])
def test_path_in_a_run_id_is_not_packed(run_id: str) -> None:
    with pytest.raises(UserError) as refusal:
        pack_archive("pack", {f"runs/{run_id}/spec.json": b""})
    assert str(refusal.value).isprintable()


def test_figures_of_different_graphs_have_different_files() -> None:
    names = [
        "gü",
        "gö",
        "g-",
        "g",
        "g-x@1-16",
        "g-x-1-16",
        "g x",
        "g/x",
        "g:x",
        "G",
        "x" * 3000,
        "x" * 3001,
        "",
    ]
    assert len({file_stem("loss", name) for name in names}) == len(names)
    assert all("/" not in file_stem("loss", name) and len(file_stem("loss", name)) < 120 for name in names)
