"""Names of code in README and docs exist in the code, and the defaults that pages state are those of the code."""

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from harness.cli.scaffold.scaffold import write_project
from harness.registry import load_strategy, registered_strategies
from harness.spec.spec import Spec

ROOT = Path(__file__).parents[1]
HISTORY = {"log.md", "changelog.md"}
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(
        path
        for path in sorted((ROOT / "docs").rglob("*.md"))
        if path.name not in HISTORY and path.parent.name != "adr"
    ),
]
OTHERS = {
    *("amdsmi", "g_cache_enabled", "get_timers", "ghp_", "libra_partition", "load_library", "salloc", "tmux"),
    *("uniform_randint", "unreleased"),
}
"""Names of other programs."""
READERS_FILES = {
    "config/site.yaml",
    "config/machines/department.yaml",
    "config/machines/mine-measured.yaml",
    "config/programs/my-gnn.yaml",
    "examples/train.py",
    "harness/cli/commands/degrees.py",
    "harness/report/figures/kinds/fewest_messages.py",
}
"""Files that a reader writes, or that other programs have."""
SHORTEST = 4
"""Shorter names are symbols of formulas and options of other programs."""


def name_page(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def list_spans(page: Path) -> list[str]:
    """Return the text of each code span of a page; blocks are tested by tests/journeys/test_pages.py."""
    prose = re.sub(r"```.*?```|^    [^\n]*$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"`([^`\n]+)`", prose)


def list_names(page: Path) -> set[str]:
    """Return the identifiers of the code spans of a page, with their dots. A span with spaces is no name."""
    name = r"(?<![\w./@-])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*(?![\w/@-])"
    return {each for span in list_spans(page) if " " not in span for each in re.findall(name, span)}


@cache
def read_words() -> frozenset[str]:
    """The identifiers of the code, of cards and of workflows, and the names of the files of tests."""
    tops = ("harness", "strategies", "benchmarks", "workflows", "config", "datasets", "docs", "slurm")
    suffixes = {".py", ".yaml", ".csv", ".html", ".js", ".css", ".txt", ".smk"}
    files = [
        path
        for top in tops
        for path in (ROOT / top).rglob("*")
        if path.is_file() and (path.suffix in suffixes or path.name == "Snakefile")
    ]
    texts = [path.read_text(errors="ignore") for path in (*files, ROOT / "pyproject.toml", ROOT / "Makefile")]
    stems = [path.stem for path in (*files, *(ROOT / "tests").rglob("*.py"))]
    return frozenset(word for text in (*texts, *stems) for word in re.findall(r"[A-Za-z_]\w*", text))


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_every_name_of_a_page_is_in_the_code(page: Path) -> None:
    parts = {part for name in list_names(page) for part in name.split(".")}
    named = {part for part in parts if len(part) >= SHORTEST and not part.isupper()}
    assert named - read_words() - OTHERS == set(), "rename it, or add a name of another program to OTHERS"


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_every_path_of_a_page_exists(page: Path) -> None:
    """A path begins in the root, or a path of Python code in `harness`."""
    tops = "harness|strategies|tests|benchmarks|docs|config|workflows|examples|slurm"
    path = re.compile(rf"(?<![\w./@<-])(?:(?:{tops})/[\w./*-]+|\w+/[\w/]+\.py\b)")
    paths = {each.rstrip(".") for span in list_spans(page) for each in path.findall(span)}
    named = {each for each in paths - READERS_FILES if not re.search(r"[A-Z]{4,}|\*|^path/", each)}
    assert {
        each for each in named if not (ROOT / each).exists() and not (ROOT / "harness" / each).exists()
    } == set()


FILES = re.compile(r"\.(py|md|yaml|csv|svg)$")
OTHER_MODULES = {"torch.cuda"}


def list_missing_modules(page: Path) -> set[str]:
    """Return the dotted names of modules that the harness does not have. Names of classes are not modules."""
    modules = {
        name.removeprefix("harness.")
        for name in list_names(page)
        if "." in name and name.islower() and not FILES.search(name)
    }
    places = {name: ROOT / "harness" / name.replace(".", "/") for name in modules - OTHER_MODULES}
    return {
        name for name, place in places.items() if not (place.is_dir() or place.with_suffix(".py").exists())
    }


def test_every_module_of_the_architecture_exists() -> None:
    assert list_missing_modules(ROOT / "docs" / "develop" / "architecture.md") == set()


def test_module_that_does_not_exist_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`check.laws` and `harness.check.kit` are gone; `comm.axis`, `harness.cli.commands` are not."
    )
    assert list_missing_modules(page) == {"check.laws", "check.kit"}


@cache
def read_classes() -> dict[str, tuple[set[str], set[str]]]:
    """The names of the bases and of the attributes of each class of the code."""
    classes: dict[str, tuple[set[str], set[str]]] = {}
    for top in ("harness", "strategies", "benchmarks"):
        for path in (ROOT / top).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    bases, attributes = classes.setdefault(node.name, (set(), set()))
                    bases.update(base.id for base in node.bases if isinstance(base, ast.Name))
                    attributes.update(list_attributes(node))
    return classes


def list_attributes(node: ast.ClassDef) -> Iterator[str]:
    for child in ast.walk(node):
        match child:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                yield name
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


def has_attribute(cls: str, name: str) -> bool:
    if cls not in read_classes():
        return True
    bases, attributes = read_classes()[cls]
    return name in attributes or any(has_attribute(base, name) for base in bases if base in read_classes())


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_every_attribute_of_a_page_is_one_of_its_class(page: Path) -> None:
    dotted = [name.split(".")[-2:] for name in list_names(page) if "." in name]
    assert [f"{cls}.{name}" for cls, name in dotted if not has_attribute(cls, name)] == []


def test_attribute_that_a_class_lacks_is_found() -> None:
    assert has_attribute("Compose", "setup_words")
    assert has_attribute("Compose", "allowed_orders")  # of its base
    assert not has_attribute("Compose", "words_of_setup")


NOT_OF_A_SPEC = {"across", "block", "build_jobs", "protocol", "scale"}
"""Keys of an experiment, a workflow or Python; and one whose value is a symbol."""


@cache
def list_settings() -> dict[str, list[type[BaseModel]]]:
    """The models that can have a setting, by what precedes its name: a part of a spec, or nothing."""
    parts = {
        name: field.annotation
        for name, field in Spec.model_fields.items()
        if inspect.isclass(field.annotation) and issubclass(field.annotation, BaseModel)
    }
    params: list[type[BaseModel]] = [load_strategy(point.name).Params for point in registered_strategies()]
    return {
        **{name: [part] for name, part in parts.items()},
        "strategy.params": params,
        "": [*params, *parts.values()],
    }


def accepts(model: type[BaseModel], key: str, value: object) -> bool:
    try:
        model.__pydantic_validator__.validate_assignment(model.model_construct(), key, value)
    except (ValidationError, ValueError, TypeError):
        return False
    return key in model.model_fields


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_every_setting_of_a_page_is_accepted(page: Path) -> None:
    spans = "\n".join(list_spans(page))
    for place, key, text in re.findall(
        r"^(?:([a-z.]+)\.)?([a-z]\w*)=([a-z0-9][\w./+-]*)$", spans, flags=re.MULTILINE
    ):
        value, models = yaml.safe_load(text), list_settings()[place]
        assert key in NOT_OF_A_SPEC or any(accepts(model, key, value) for model in models), f"{key}={text}"


def test_setting_that_no_spec_has_is_refused() -> None:
    assert accepts(list_settings()["model"][0], "order", "best")
    assert not accepts(list_settings()["model"][0], "order", "fastest")
    assert not accepts(list_settings()["model"][0], "orders", "best")


PAGES_OF_STRATEGIES = sorted((ROOT / "docs" / "strategies").glob("[!R]*.md"))


def list_strategies(page: Path) -> set[str]:
    """Return the strategies that a page introduces in its title, or in a table above its first section."""
    lead = page.read_text().partition("\n## ")[0]
    return {
        *re.findall(r"`([^`]+)`", lead.splitlines()[0]),
        *re.findall(r"^\| `([^`]+)` \|", lead, flags=re.MULTILINE),
    }


def list_defaults(page: Path) -> dict[str, str]:
    """Return the values in parentheses after names of parameters, as in `stale` (1)."""
    found = re.findall(r"`(\w+)` \((\d[\d.]*|true|false|`\w+`)[),;]", page.read_text())
    return {name: value.strip("`") for name, value in found}


def test_defaults_on_pages_of_strategies_are_those_of_their_parameters() -> None:
    wrong, count = [], 0
    for page in PAGES_OF_STRATEGIES:
        for strategy in sorted(list_strategies(page)):
            fields = load_strategy(strategy).Params.model_fields
            for name, value in list_defaults(page).items():
                if name in fields:
                    count += 1
                    if yaml.safe_load(value) != fields[name].default:
                        wrong.append(f"{page.name}: {strategy}.{name} is {fields[name].default}, not {value}")
    assert not wrong
    assert count >= 10


def test_links_of_a_new_project_lead_to_its_files(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project")
    links = [
        (page, link)
        for page in project.rglob("*.md")
        for link in re.findall(r"\]\((?![a-z]+:)([^)\s#]+)", page.read_text())
    ]
    assert [f"{page.name}: {link}" for page, link in links if not (page.parent / link).exists()] == []
