"""Figures that become parts of the page are drawings and nothing else: no scripts, no links, nothing from outside.

A folder of figures may come from others. A file that holds more than `harness figures` draws is refused, not repaired.
"""

import re
from pathlib import Path
from xml.etree import ElementTree

from harness.errors import UserError
from harness.validation import format_value

ELEMENTS = {
    "svg",
    "g",
    "defs",
    "path",
    "use",
    "style",
    "clipPath",
    "rect",
    "text",
    "tspan",
    "image",
    "title",
    "pattern",
}
"""The elements of matplotlib's drawings."""
REFERENCE = re.compile(r"#[\w.-]*|data:image/png;base64,[\w+/=\s]*")
"""The places to which a drawing may refer: its own parts, and a picture that it brings along."""
OUTSIDE = re.compile(
    r"url\((?!#)|@|\\|expression|javascript|image-set|src\s*\(|cross-fade|-binding", re.IGNORECASE
)
"""The words of a style that reach beyond the drawing, or hide others that do."""


def check_drawing(text: str, path: Path) -> None:
    """Refuses an SVG, as it will be in the page, that holds more than a drawing."""
    if extra := _beyond_a_drawing(text):
        raise UserError(
            f"The figure {path} holds {extra}, which no figure of the harness has. `harness figures` draws it anew."
        )


def _beyond_a_drawing(text: str) -> str | None:
    """What an SVG holds beyond a drawing, or None.

    The page is read as HTML, which ends comments, sections and instructions elsewhere than XML: none is accepted.
    """
    if found := re.search(r"<[!?]", text):
        return f"{format_value(text[found.start() : found.start() + 20])} within its drawing"
    try:
        drawing = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        return f"text that is not XML ({error})"
    for element in drawing.iter():
        if element.tag not in ELEMENTS:
            return f"the element {format_value(element.tag)}"
        # HTML would read elements of a title by other rules than the rest.
        outside = element.tag == "style" and OUTSIDE.search("".join(element.itertext()))
        if outside or (element.tag == "title" and len(element)):
            return f"a {element.tag} that reaches beyond the drawing"
        for name, value in element.attrib.items():
            if not _is_of_a_drawing(name.lower(), value):
                return f"the attribute {format_value(name)} = {format_value(value)}"
    return None


def _is_of_a_drawing(name: str, value: str) -> bool:
    """True if an attribute refers to nothing outside, and runs nothing."""
    if name in ("href", "src"):
        return REFERENCE.fullmatch(value) is not None
    return name == "aria-label" or not (
        name.startswith("on") or re.search(r"[^\w-]", name) or OUTSIDE.search(value)
    )
