"""Checks that the SVG of a figure is only a drawing, without scripts, links or resources from outside.

Figures may come from other people. A file that holds more than `harness figures` draws is refused, not repaired.
"""

import re
from pathlib import Path
from xml.etree import ElementTree

from harness.errors import UserError
from harness.validation import format_value

ALLOWED_ELEMENTS = {
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
"""The elements that matplotlib draws with."""
ALLOWED_REFERENCE = re.compile(r"#[\w.-]*|data:image/png;base64,[\w+/=\s]*")
"""What a drawing may refer to: its own parts and embedded pictures."""
FORBIDDEN_STYLE = re.compile(
    r"url\((?!#)|@|\\|expression|javascript|image-set|src\s*\(|cross-fade|-binding", re.IGNORECASE
)
"""Parts of a style that refer to the outside, or that could hide such a reference."""


def check_drawing(text: str, path: Path) -> None:
    """Raise UserError if an SVG, as it will be in the page, holds more than a drawing."""
    if found := _find_forbidden(text):
        raise UserError(
            f"The figure {path} holds {found}, which no figure of the harness has. `harness figures` draws it again."
        )


def _find_forbidden(text: str) -> str | None:
    """Describe what an SVG holds beyond a drawing; None if it is only a drawing.

    Comments, sections and instructions are refused, because HTML ends them elsewhere than XML.
    """
    if found := re.search(r"<[!?]", text):
        return f"{format_value(text[found.start() : found.start() + 20])} within its drawing"
    try:
        drawing = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        return f"text that is not XML ({error})"
    for element in drawing.iter():
        if element.tag not in ALLOWED_ELEMENTS:
            return f"the element {format_value(element.tag)}"
        # HTML parses elements within a title by other rules.
        outside = element.tag == "style" and FORBIDDEN_STYLE.search("".join(element.itertext()))
        if outside or (element.tag == "title" and len(element)):
            return f"a {element.tag} that reaches beyond the drawing"
        for name, value in element.attrib.items():
            if not _is_allowed_attribute(name.lower(), value):
                return f"the attribute {format_value(name)} = {format_value(value)}"
    return None


def _is_allowed_attribute(name: str, value: str) -> bool:
    """Return whether an attribute refers only to the drawing and runs no code."""
    if name in ("href", "src"):
        return ALLOWED_REFERENCE.fullmatch(value) is not None
    return name == "aria-label" or not (
        name.startswith("on") or re.search(r"[^\w-]", name) or FORBIDDEN_STYLE.search(value)
    )
