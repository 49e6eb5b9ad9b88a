"""The script of Vega, Vega-Lite and vega-embed, which draws the charts of the report.

To make it takes longer than to import torch, so it is kept in the user's cache folder, by the version of its package.
"""

import os
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from stat import S_ISREG

from harness.base.errors import RunError, UserError
from harness.base.files import is_own, is_private_folder, write_text

EXPORTS = "window.vegaEmbed = vegaEmbed;"


@cache
def load_vega() -> str:
    """Return the script. It is made anew if the cache folder cannot be used, or is not this user's alone."""
    import vl_convert

    name = f"vega-{version('vl-convert-python')}.js"
    folder = find_cache_folder()
    with suppress(OSError, UnicodeDecodeError):
        if folder and is_private_folder(folder) and is_own(folder / name, S_ISREG):
            return (folder / name).read_text(encoding="utf-8")
    script = str(vl_convert.javascript_bundle(EXPORTS))
    with suppress(OSError, UserError, RunError):
        if folder and is_private_folder(folder):
            write_text(folder / name, script)
    return script


def find_cache_folder() -> Path | None:
    """Return the folder for what is made once for a user; None if there cannot be one."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "parallel-gnn-harness"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home folder
        return None
    return folder
