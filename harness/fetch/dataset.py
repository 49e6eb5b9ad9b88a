"""All files that a dataset's card says are published."""

from pathlib import Path

from harness.fetch.download import download
from harness.store.build import data_folder
from harness.store.catalog import load_card
from harness.store.work import Say


def fetch(root: Path, name: str, say: Say) -> list[Path]:
    """Fetches what is lacking and checks what is there; nothing, for a graph that is drawn or brought."""
    remotes = load_card(root, name).source.remotes()
    return [download(remote, data_folder(root), say) for remote in remotes]
