"""What a verb imports: torch, numba, pandas, matplotlib and Snakemake only where the verb uses them.

Times are in `python -m benchmarks launching.startup`; what is in `sys.modules` does not depend on the machine.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.cli.commands import VERBS

HEAVY = {"torch", "numba", "pandas", "matplotlib", "snakemake"}
CALL = f"""
import sys
from harness.cli import main
code = main(sys.argv[1:])
print("imported:", *sorted({HEAVY!r} & {{*sys.modules}}))
sys.exit(code)
"""
SPEC = ["--strategy", "serial", "--dataset", "tiny-sbm"]


def call(words: Sequence[str], results: Path, code: str = CALL) -> set[str]:
    """Run a verb in a process; return the heavy modules that it imported."""
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env={"PATH": "", "HARNESS_RESULTS": str(results), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {*done.stdout.splitlines()[-1].split()[1:]}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of results with one run, which the launcher started without torch."""
    folder = tmp_path_factory.mktemp("results")
    assert call(["run", *SPEC], folder) == set()
    return folder


@pytest.mark.parametrize(
    ("verb", "allowed"),
    [
        ("list datasets", set()),
        ("list machines", set()),
        ("list figures", set()),
        ("list settings", set()),
        ("data fetch tiny-lattice", set()),
        ("data build tiny-sbm", set()),
        ("data verify tiny-sbm", set()),
        ("runs list", set()),
        ("runs prune --status failed", set()),
        ("completion --help", set()),
        ("doctor --help", set()),
        ("collect", {"pandas"}),
    ],
)
def test_verb_imports_what_it_uses(verb: str, allowed: set[str], results: Path) -> None:
    if verb.startswith("data"):
        call(["data", "build", "tiny-sbm"], results)
    assert call(verb.split(), results) <= allowed


def test_parser_of_a_verb_imports_no_other_verb(results: Path) -> None:
    modules = {verb.function.partition(":")[0] for verb in VERBS.values()} - {"harness.cli.commands.listing"}
    code = CALL.replace(repr(HEAVY), repr(modules))
    assert call(["list", "machines"], results, code) == set()


def test_run_that_exists_is_found_without_torch_in_the_launcher(results: Path) -> None:
    assert call(["run", *SPEC], results) == set()
    (spec,) = results.glob("runs/*/spec.json")
    assert call(["run", "--spec", str(spec)], results) == set()


def test_ranks_write_their_tables_without_pandas(results: Path) -> None:
    """A rank has imported what the fork server has, and what it needed itself."""
    code = """
import sys
from harness.runtime.launch.fork_server import PRELOADED_MODULES
from importlib import import_module
for module in PRELOADED_MODULES:
    import_module(module)
from harness.results.parquet import columns_to_arrow, serialize_table, to_array
from harness.results.schema import RUN_TABLES
table = RUN_TABLES["accuracy"]
columns = {"epoch": [1, 2], "train_seconds": [0.5, 1.0], "eval_seconds": [0.1, 0.2], "split": ["test", "test"],
           "accuracy": [0.5, None]}
rows = columns_to_arrow(columns, table)
serialize_table(rows, table)
print([to_array(rows[name]).tolist() for name in ("epoch", "train_seconds", "split")])
assert rows["accuracy"].null_count == 1
print("pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    columns, has_pandas = done.stdout.splitlines()
    assert json.loads(columns.replace("'", '"')) == [[1, 2], [0.5, 1.0], ["test", "test"]]
    assert has_pandas == "False"
