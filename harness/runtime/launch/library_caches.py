"""The folders in which libraries cache compiled code, on the local disk of each node, where others may write too.

    python -m harness.runtime.launch.library_caches harness.runtime.rank WORDS

A library runs the code that it finds in its cache, so a task makes sure that its user owns the folder before it
imports a library.
"""

import os
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from harness.base.files import make_private_folder

CACHE_VARIABLE = "HARNESS_CACHES"
"""The variable with the folder of a node's caches."""
CACHE_FOLDERS = {
    "NUMBA_CACHE_DIR": "numba",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda",
    "MIOPEN_USER_DB_PATH": "miopen",
    "MIOPEN_CUSTOM_CACHE_DIR": "miopen",
    "MPLCONFIGDIR": "matplotlib",
}
"""The variable and the folder of each library's cache. Caches are local, because all ranks write at once."""


def make_cache_environment(local: str) -> dict[str, str]:
    """Return the variables that name the caches of a node, below its folder `local`."""
    folder = f"{local}/harness-{os.getuid()}"
    return {CACHE_VARIABLE: folder, **{name: f"{folder}/{cache}" for name, cache in CACHE_FOLDERS.items()}}


def secure_caches(environ: MutableMapping[str, str]) -> None:
    """Make the folder of the caches private, or choose another one if another user made it first.

    If no folder can be made, the variables are removed, so libraries use their defaults. A cache that the user
    has chosen is left as it is.
    """
    if CACHE_VARIABLE not in environ:
        return
    folder, private = environ[CACHE_VARIABLE], None
    with suppress(OSError):
        Path(folder).parent.mkdir(parents=True, exist_ok=True)
        private = make_private_folder(Path(folder))
    for name, cache in CACHE_FOLDERS.items():
        if environ.get(name) != f"{folder}/{cache}":
            continue
        if private is None:
            del environ[name]
        else:
            environ[name] = str(private / cache)


def main() -> int:
    """Secure the caches, and run the program on the command line."""
    secure_caches(os.environ)
    module, *sys.argv[1:] = sys.argv[1:]
    return int(import_module(module).main())


if __name__ == "__main__":
    sys.exit(main())
