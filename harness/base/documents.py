"""Strict reading of YAML and JSON files: bounded length and depth, and no duplicate keys.

Errors quote only the key, number or tag at fault, because a path may lead to an unrelated file.
`harness.base.validation` checks the meaning of the keys.
"""

import json
import math
import re
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Never

import yaml

from harness.base.errors import UserError
from harness.base.validation import clip_line

MAX_BYTES = {"YAML": 1 << 20, "JSON": 1 << 28}
"""The maximum size of a file in bytes. YAML is slow to parse, and nobody writes a megabyte of it."""
MAX_DEPTH = 40
"""The maximum depth of nested lists and mappings."""
MAX_VALUES = 1 << 18
"""The maximum number of values of a YAML file with its aliases expanded."""
PREFIX = "tag:yaml.org,2002:"
TAGS = {"null", "bool", "int", "float", "str", "seq", "map", "merge"}
DECIMAL = re.compile(r"[-+]?(0|[1-9][\d_]*|(?=\.\d))(\.[\d_]*)?([eE][-+]?\d+)?")
"""A number without ambiguity: YAML 1.1 reads 010 as 8 and 1:30 as 90."""


class _InvalidDocumentError(Exception):
    """The reason why a document is rejected."""


class _Loader(yaml.SafeLoader):
    """A YAML loader without dates and with bounded depth."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _InvalidDocumentError(f"it is nested more than {MAX_DEPTH} levels deep")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != f"{PREFIX}timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_yaml(path: Path, where: str, *, may_be_empty: bool = False) -> dict[str, Any]:
    """Read the mapping in a YAML file, which errors call `where`."""
    data = _read_file(path, where, "YAML", _parse_yaml)
    return {} if may_be_empty and data in (None, {}) else _check_mapping(data, where)


def read_json(path: Path, where: str) -> dict[str, Any]:
    """Read the mapping in a JSON file, which errors call `where`."""
    return _check_mapping(_read_file(path, where, "JSON", _parse_json), where)


def parse_json(data: bytes, where: str) -> dict[str, Any]:
    """Parse the mapping in the text of a JSON file, which errors call `where`."""
    return _check_mapping(_parse_bytes(data, where, "JSON", _parse_json), where)


def parse_yaml_value(text: str, where: str) -> Any:
    """Parse a short YAML text, such as the value of an option."""
    try:
        return _parse_yaml(text)
    except _InvalidDocumentError as reason:
        raise UserError(f"{where} is not understood: {reason}.") from None


def _read_file(path: Path, where: str, language: str, parse: Callable[[str], Any]) -> Any:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES[language] + 1)
    except (OSError, ValueError) as error:  # a ValueError for a path with a NUL in it
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{where} cannot be read: {reason}.") from None
    if len(data) > MAX_BYTES[language]:
        raise UserError(
            f"{where} has more than {MAX_BYTES[language]:,} bytes, which is too large for a file of this kind."
        )
    return _parse_bytes(data, where, language, parse)


def _parse_bytes(data: bytes, where: str, language: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(data.removeprefix(BOM_UTF8).decode())
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is not text in UTF-8: byte {error.start + 1:,} is invalid.") from None
    except _InvalidDocumentError as reason:
        raise UserError(f"{where} cannot be read as {language}: {reason}.") from None


def _check_mapping(data: Any, where: str) -> dict[str, Any]:
    if not isinstance(data, dict) or not data:
        kind = "a list" if isinstance(data, list) else "a single value" if data else "empty"
        raise UserError(f"{where} must be a mapping of keys to values, but it is {kind}.")
    return data


def _parse_yaml(text: str) -> Any:
    return _copy_values(_parse_yaml_cached(text))


def _copy_values(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _copy_values(value) for key, value in data.items()}
    return [_copy_values(value) for value in data] if isinstance(data, list) else data


@lru_cache(maxsize=32)
def _parse_yaml_cached(text: str) -> Any:
    """Parse a YAML text. Cached, because all runs of a plan may name the same card."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _count_values(node, {})
        return _check_values(loader.construct_document(node))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        raise _InvalidDocumentError(f"{clip_line(reason, 120)}{place}") from None
    except (yaml.YAMLError, ValueError, LookupError) as error:
        raise _InvalidDocumentError(clip_line(str(error), 120)) from None


def _count_values(node: Any, weights: dict[int, int]) -> int:
    """Count the values of a node with its aliases expanded. Raises for ambiguous or duplicate keys."""
    line = f"line {node.start_mark.line + 1}"
    if id(node) in weights:
        if not weights[id(node)]:
            raise _InvalidDocumentError(f"{line}: an alias contains itself")
        return weights[id(node)]
    weights[id(node)] = 0
    if node.tag.removeprefix(PREFIX) not in TAGS:
        raise _InvalidDocumentError(f"{line}: the tag {clip_line(node.tag, 40)} is not accepted")
    if isinstance(node, yaml.ScalarNode):
        _check_number(node, line)
        inner = []
    elif isinstance(node, yaml.MappingNode):
        _check_keys(node)
        inner = [part for pair in node.value for part in pair]
    else:
        inner = node.value
    weight = 1 + sum(_count_values(part, weights) for part in inner)
    if weight > MAX_VALUES:
        raise _InvalidDocumentError(f"{line}: its aliases expand to more than {MAX_VALUES:,} values")
    weights[id(node)] = weight
    return weight


def _check_number(node: Any, line: str) -> None:
    is_number = node.style is None and node.tag in (f"{PREFIX}int", f"{PREFIX}float")
    if is_number and not DECIMAL.fullmatch(node.value):
        raise _InvalidDocumentError(
            f"{line}: {clip_line(node.value, 40)} is not a finite decimal number; write one, or text in quotes"
        )


def _check_keys(node: Any) -> None:
    seen = set()
    for key, _ in node.value:
        line = f"line {key.start_mark.line + 1}"
        if not isinstance(key, yaml.ScalarNode) or key.tag not in (f"{PREFIX}str", f"{PREFIX}merge"):
            raise _InvalidDocumentError(f"{line}: a key is not text; put it in quotes")
        if key.value in seen:
            raise _InvalidDocumentError(f"{line}: the key {clip_line(key.value, 40)} occurs twice")
        seen.add(key.value)


def _parse_json(text: str) -> Any:
    def make_unique_mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping = dict(pairs)
        if len(mapping) < len(pairs):
            twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
            raise _InvalidDocumentError(f"the key {clip_line(twice, 40)} occurs twice in one mapping")
        return mapping

    def reject_constant(word: str) -> Never:
        raise _InvalidDocumentError(f"{word} is not a finite number")

    try:
        return _check_values(
            json.loads(text, object_pairs_hook=make_unique_mapping, parse_constant=reject_constant)
        )
    except RecursionError:
        raise _InvalidDocumentError(f"it is nested more than {MAX_DEPTH} levels deep") from None
    except ValueError as error:
        raise _InvalidDocumentError(clip_line(str(error), 120)) from None


def _check_values(data: Any, depth: int = 0) -> Any:
    """Return the data. Raises for text that cannot be written again, and for non-finite numbers."""
    if depth > MAX_DEPTH:
        raise _InvalidDocumentError(f"it is nested more than {MAX_DEPTH} levels deep")
    if isinstance(data, dict):
        for key, value in data.items():
            _check_values(key, depth)
            _check_values(value, depth + 1)
    elif isinstance(data, list):
        for value in data:
            _check_values(value, depth + 1)
    elif isinstance(data, float) and not math.isfinite(data):
        raise _InvalidDocumentError("it contains a non-finite number")
    elif isinstance(data, str) and ("\0" in data or not _is_unicode(data)):
        raise _InvalidDocumentError("it contains text with a NUL or a lone surrogate")
    return data


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
