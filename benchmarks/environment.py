"""The machine, the code, the versions and the settings that recorded numbers depend on."""

import os
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

from harness.base.formatting import GIB
from harness.runtime.provenance import collect_provenance
from harness.spec.root import find_root

FOLDERS_OF_CODE = ("harness", "strategies", "benchmarks")
SETTINGS = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "MALLOC_")
"""Environment variables that change a speed; the last is a prefix."""


def describe_environment() -> str:
    """Return a paragraph with the machine, code, versions and settings of this process."""
    facts = collect_provenance(find_root())
    settings = {name: value for name, value in os.environ.items() if name.startswith(SETTINGS)}
    return describe(facts, version_of_code(find_root(), facts["commit"]), settings)


def version_of_code(root: Path, commit: str | None) -> str:
    """Return what identifies the code on a page: the commit or, outside of a git repository, a hash of the files."""
    if commit is not None:
        return f"Commit {commit[:10]}"
    digest = sha256()
    for path in sorted(chain(*(root.glob(f"{folder}/**/*.py") for folder in FOLDERS_OF_CODE))):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return f"No commit: code {digest.hexdigest()[:10]}"


def describe(facts: dict[str, Any], version: str, settings: dict[str, str]) -> str:
    """Return a paragraph about the facts that `provenance` found, a version of the code, and settings."""
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    gpu = f", {facts['gpu']}" if facts["gpu"] else ""
    state = ", with changes" if facts["dirty"] else ""
    versions = ", ".join(f"{package} {number}" for package, number in facts["versions"].items())
    shown = " ".join(f"{key}={value}" for key, value in sorted(settings.items()))
    return (
        f"{facts['cores']} cores of {facts['cpu']}, {gib:.0f} GiB{gpu}, load {facts['load_average']:.1f} at the start. "
        f"{version}{state}. {versions}. {shown}."
    )
