"""What a folder holds, to compare it with another."""

from pathlib import Path


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file under a folder, hidden ones too, by its path there."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
