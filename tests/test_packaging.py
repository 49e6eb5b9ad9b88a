"""Packaging of a checkout: pinned versions, wheel, symlinks, licence, and commands."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import harness
from harness.base.errors import EXTRAS
from harness.cli.commands import VERBS
from tests.python_path import with_python_path

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS_OF_PROJECT = PROJECT["optional-dependencies"]
APACHE_2_0 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
"""The digest of LICENSE-2.0.txt as the Apache Software Foundation publishes it."""
LINKS_OF_A_PROJECT = "workflow", "slurm"


def run(*command: str, cwd: Path = ROOT, code: int = 0, **environment: str) -> str:
    """What the command prints, on both streams in order."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().split()
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def test_every_pin_but_torch_has_the_hashes_of_its_files() -> None:
    text = (ROOT / "constraints.lock").read_text().replace(" \\\n", "")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    locked = dict(line.split(maxsplit=1)[0].split("==") for line in lines)
    assert {canonicalize_name(name): version for name, version in locked.items()} == {
        name: version
        for name, version in pins().items()
        if not name.startswith(("torch", "triton", "nvidia-", "cuda-")) or name == "torch-geometric"
    }, "python docs/write_lock.py"
    assert all(re.fullmatch(r"\S+( +--hash=sha256:[0-9a-f]{64})+", line) for line in lines)


def test_images_contain_nothing_that_git_ignores() -> None:
    def read(name: str) -> list[str]:
        lines = (ROOT / name).read_text().splitlines()
        patterns = [line.removeprefix("**/") for line in lines if not line.startswith("#")]
        return [line.replace("!/", "!").strip("/") for line in patterns]

    assert read(".dockerignore") == read(".gitignore")


def test_every_dependency_is_pinned_to_a_version_it_accepts() -> None:
    lines = [*PROJECT["dependencies"], *(line for extra in EXTRAS_OF_PROJECT.values() for line in extra)]
    for requirement in (Requirement(line) for line in lines if not line.startswith(PROJECT["name"])):
        pin = pins().get(canonicalize_name(requirement.name))
        assert pin, f"constraints.txt has no {requirement.name}"
        assert requirement.specifier.contains(pin), f"{requirement} does not accept {pin}"


def test_every_pin_accepts_the_oldest_python_of_the_project() -> None:
    """Its first release too, which distributions of Linux keep: one pin asked for 3.11.5, and Debian 12 has 3.11.2."""
    (oldest,) = SpecifierSet(PROJECT["requires-python"])
    assert oldest.operator == ">="
    installed = {canonicalize_name(each.metadata["Name"]): each for each in distributions()}
    at_pin = {
        name: installed[name]
        for name, pin in pins().items()
        if name in installed and installed[name].version == pin
    }
    assert len(at_pin) > 100
    asked = {name: SpecifierSet(each.metadata["Requires-Python"] or "") for name, each in at_pin.items()}
    assert [f"{name} {each}" for name, each in asked.items() if f"{oldest.version}.0" not in each] == []


def files_of(folder: Path) -> set[str]:
    """All files below a folder, through links."""
    files = {
        str(Path(place, name).relative_to(folder.parent))
        for place, _, names in os.walk(folder, followlinks=True)
        for name in names
    }
    return {name for name in files if "__pycache__" not in name}


def test_the_wheel_holds_one_package_whole_and_nothing_else(wheel: Path) -> None:
    """With the strategies, cards and workflows that the package links to. No other name can clash in site-packages."""
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == files_of(ROOT / "harness")
    project = "harness/cli/scaffold/templates/project"
    assert {"harness/strategies/serial.py", f"{project}/workflows/Snakefile"} <= held
    cards = {path.relative_to(ROOT) for path in (ROOT / "config" / "programs").glob("*.yaml")}
    assert len(cards) >= 5 and {f"{project}/{card}" for card in cards} <= held


OTHER_NAMES = {"vl_convert": "vl-convert-python"}
"""Packages that are imported by another name than they are installed."""


def test_an_extra_installs_what_a_missing_package_asks_for() -> None:
    installed = {
        extra: {canonicalize_name(Requirement(line).name) for line in EXTRAS_OF_PROJECT[extra]}
        for extra in EXTRAS
    }
    for extra, packages in EXTRAS.items():
        assert {canonicalize_name(OTHER_NAMES.get(package, package)) for package in packages} <= installed[
            extra
        ]
    assert Requirement(EXTRAS_OF_PROJECT["all"][0]).extras == set(EXTRAS)
    assert not set().union(*installed.values()) & {Requirement(line).name for line in PROJECT["dependencies"]}


WITHOUT_EXTRAS = """
import sys
import harness
from harness.base.errors import EXTRAS
for package in sum(EXTRAS.values(), ()):
    sys.modules[package] = None
from harness.cli import main
words = ["--dataset", "tiny-sbm", "--set", "training.epochs=1", "--in-process", "--out", sys.argv[1]]
assert main(["run", "--strategy", "serial", *words]) == 0
assert main(["list", "datasets"]) == 0
sys.exit(main(["figures", "--tables", sys.argv[1]]))
"""


def test_the_core_trains_without_the_extras_and_names_the_extra_of_a_figure(tmp_path: Path) -> None:
    said = run(sys.executable, "-c", WITHOUT_EXTRAS, str(tmp_path), code=2)
    assert "pip install 'parallel-gnn-harness[plots]'" in said


def test_an_installed_wheel_finds_its_strategies_as_it_would_find_foreign_ones(
    wheel: Path, tmp_path: Path
) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = """
import harness
from harness.registry import registered_strategies
print(harness.__file__)
for point in registered_strategies():
    print(point.name, point.load().name)
"""
    environment = with_python_path(tmp_path)
    where, *found = run(sys.executable, "-c", code, cwd=tmp_path, **environment).splitlines()
    assert Path(where).is_relative_to(tmp_path)
    assert set(found) == {f"{name} {name}" for name in PROJECT["entry-points"]["harness.strategies"]}


def test_the_citation_has_the_version_and_the_licence() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (cited["version"], cited["license"]) == (PROJECT["version"], PROJECT["license"])
    assert [author["name"] for author in cited["authors"]] == [
        author["name"] for author in PROJECT["authors"]
    ]
    assert PROJECT["version"] == harness.__version__


def test_the_licence_is_apache_2_unmodified() -> None:
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2_0


@pytest.mark.parametrize(
    ("link", "target"), [("workflow", "workflows"), ("slurm", "workflows/profiles/slurm")]
)
def test_snakemake_finds_the_workflow_and_the_profile_by_symlink(link: str, target: str) -> None:
    assert (ROOT / link).readlink() == Path(target)
    assert (ROOT / link).is_dir()


def tracked_files() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    return run("git", "ls-files", "-z").split("\0")[:-1]


def test_no_tracked_file_is_large() -> None:
    """Packs have the times of every call of every epoch, which cannot be compressed."""
    sizes = {name: (ROOT / name).lstat().st_size for name in tracked_files() if (ROOT / name).exists()}
    assert not {
        name: size
        for name, size in sizes.items()
        if size > (700_000 if name.startswith("benchmarks/packs/") else 500_000)
    }


def test_the_time_limits_of_ci_add_up() -> None:
    """GitHub ends a job at its limit, whatever the steps may still take."""
    steps = sum(map(int, re.findall(r"timeout (\d+)m ", (ROOT / ".ci" / "run").read_text())))
    (limit,) = map(
        int, re.findall(r"timeout-minutes: (\d+)", (ROOT / ".github/workflows/ci.yml").read_text())
    )
    assert steps + 20 <= limit, "20 minutes to install"


def installs(**settings: str) -> list[str]:
    """The pip commands of `make setup`, in order."""
    words = [f"{key}={value}" for key, value in settings.items()]
    lines = run("make", "--dry-run", "setup", "VENV=absent", *words).splitlines()
    return [line for line in lines if " -m pip install " in line]


def test_torch_is_installed_first_alone_and_pinned() -> None:
    torch, rest = installs()
    assert "torch==" in torch
    assert "--constraint" in torch
    assert "--index-url" not in torch
    assert "--editable" in rest
    assert "--constraint" in rest


def test_the_torch_index_serves_torch_and_nothing_else() -> None:
    torch, rest = installs(TORCH_INDEX="https://torch.example/cpu")
    assert "--index-url https://torch.example/cpu" in torch
    assert "torch.example" not in rest


def test_a_torch_that_is_to_be_kept_is_not_installed() -> None:
    (rest,) = installs(KEEP_TORCH="1")
    assert "--editable" in rest


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """A folder that is the whole PATH of .ci/run, with what the script itself needs and nothing that it asks for."""
    for name in ("bash", "dirname", "mktemp", "tee", "grep", "tail", "rm", "timeout"):
        found = shutil.which(name)
        assert found
        (tmp_path / name).symlink_to(found)
    return tmp_path


def ci(commands: Path, code: int) -> str:
    return run(str(commands / "bash"), ".ci/run", code=code, PATH=str(commands), PYTHON="python3")


def provide(commands: Path, name: str, script: str = "") -> None:
    (commands / name).write_text(f"#!{commands / 'bash'}\n{script}\n")
    (commands / name).chmod(0o755)


def test_ci_names_all_that_a_machine_lacks_at_once(commands: Path) -> None:
    output = ci(commands, code=1)
    assert all(word in output for word in ("git", "make", "C compiler", "python 3.11"))
    for name in ("git", "make", "cc"):
        provide(commands, name)
    (commands / "python3").symlink_to(sys.executable)
    provide(commands, "python3-old", "exit 1")
    old = run(str(commands / "bash"), ".ci/run", code=1, PATH=str(commands), PYTHON="python3-old")
    assert re.findall(r"^  (.*)$", old, flags=re.MULTILINE) == ["python 3.11 or newer as python3-old"]


@pytest.mark.parametrize("failing", ["none", "test", "test-long", "test-device", "smoke", "lint"])
def test_ci_fails_where_a_part_fails_and_ends_with_the_line_of_pytest(commands: Path, failing: str) -> None:
    closing = "3 failed, 4 passed in 1.23s" if failing == "test" else "7 passed in 61.05s (0:01:01)"
    for name in ("git", "cc", "c++"):
        provide(commands, name)
    (commands / "python3").symlink_to(sys.executable)
    provide(
        commands,
        "make",
        f'echo "making $1"; [ $1 != test-long ] || echo "5 passed in 9.87s"; [ $1 != test ] || echo "{closing}"; '
        f"[ $1 != {failing} ] || exit 2",
    )
    output = ci(commands, code=0 if failing == "none" else 2).splitlines()
    assert output[-1] == closing
    order = ["test", "test-long", "test-device", "smoke", "papers", "lint"]
    reached = order if failing == "none" else order[: order.index(failing) + 1]
    assert [line.removeprefix("making ") for line in output if line.startswith("making ")] == reached


def test_the_commands_of_the_readme_exist() -> None:
    readme = (ROOT / "README.md").read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", readme)) <= targets
    known = {verb.split()[0] for verb in VERBS}
    assert set(re.findall(r"`harness ([a-z]+)", readme)) <= known


def test_the_tests_for_several_versions_exist() -> None:
    text = (ROOT / "tests" / "versions.sh").read_text()
    folders = re.search(r"for folder in ([^;]+); do", text)
    assert folders and len(folders[1].split()) > 5
    assert [folder for folder in folders[1].split() if not (ROOT / "tests" / folder).is_dir()] == []
    assert all((ROOT / name).is_file() for name in re.findall(r"tests/\w+\.py", text))
