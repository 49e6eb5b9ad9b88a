"""The templates of pages."""

from base64 import b64encode
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

TEMPLATES = Path(__file__).parent


def format_script_policy(scripts: Iterable[str]) -> str:
    """Return what the policy of a page allows to run: only these scripts, by their hashes."""
    return " ".join(f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts)


def load_template(name: str) -> Template:
    """Return a template, which escapes all texts and refuses unknown names."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(name)
