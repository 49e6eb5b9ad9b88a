"""One way to turn data from outside (YAML, JSON, options) into a frozen model, with errors for people."""

import ast
import inspect
import re
import reprlib
import textwrap
from collections.abc import Callable, Collection
from difflib import get_close_matches
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from harness.errors import UserError


class Frozen(BaseModel):
    """A record that cannot change, knows all its fields, and holds no infinity and no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def added_later(default: Any, **constraints: Any) -> Any:
    """A field that a model gained after runs were recorded.

    Data leaves the field out while it has its default, so the ids of earlier runs stay.
    """
    return Field(default, exclude_if=lambda value: value == default, **constraints)


Model = TypeVar("Model", bound=BaseModel)
FAULTS = 5
"""The largest number of faults in one message."""


def check_name(name: str) -> str:
    """The name, if it can also name a file and is no option of a command; else a ValueError that gives the rule."""
    if not re.fullmatch(r"\w[\w.-]{0,99}", name):
        raise ValueError(
            "a name begins with a letter, a digit or '_', and has these, '.' and '-' only, 100 characters at most"
        )
    return name


Name = Annotated[str, AfterValidator(check_name)]
Seed = Annotated[int, Field(ge=0, lt=1 << 63)]
RANKS, CLASSES, VERTICES, WIDTH, DEGREE = 1 << 20, 1 << 20, 1 << 40, 1 << 24, 1 << 20
"""The largest numbers of a request: a larger number is a typing error, or comes from a file of another kind."""


def validate(model: type[Model], data: Any, where: str, typed: Callable[[str], str] = str) -> Model:
    """`data` as a `model`, or an error that names each field, its value and the accepted values.

    `typed` turns the key of a field into the word that the user typed, for messages.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        faults = error.errors()
        more = f"; and {len(faults) - FAULTS} more" if len(faults) > FAULTS else ""
        listed = "; ".join(_describe_fault(model, detail, typed) for detail in faults[:FAULTS])
        raise UserError(f"{where}: {listed}{more}.") from None


def clip_line(text: str, most: int) -> str:
    """The text on one line, at most `most` characters long; the end of a longer text is cut off."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def format_value(value: Any) -> str:
    """A value as errors show it: on one line, and short."""
    return clip_line(reprlib.repr(value), 80)


def unknown_name_error(kind: str, name: str, known: list[str], way_out: str = "") -> UserError:
    """The error for an unknown name, with similar names and all known names."""
    hint, listing = suggest_names(name, known), ", ".join(sorted(known)) or "none"
    return UserError(
        f"{kind} {format_value(name)} is unknown.{hint} Known: {listing}.{' ' + way_out if way_out else ''}"
    )


def suggest_names(name: str, known: Collection[str]) -> str:
    """A question with the names that are most like a name, after a space; empty if none is like it."""
    near = get_close_matches(name, known, n=3, cutoff=0.55)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def _describe_fault(model: type[BaseModel], detail: ErrorDetails, typed: Callable[[str], str]) -> str:
    names, keys = _locate_fault(model, detail["loc"])
    field = clip_line(".".join([typed(name) for name in names[:1]] + names[1:]), 80) or "the whole"
    if detail["type"] == "extra_forbidden":
        hint, listing = suggest_names(names[-1], keys), f"ccepted keys: {', '.join(keys)}"
        return f"{field} is not a key here{f'.{hint} A' if hint else '; a'}{listing}"
    if detail["type"] == "missing":
        return f"{field} is missing"
    wish = clip_line(detail["msg"].removeprefix("Value error, "), 400)
    return f"{field} = {format_value(detail['input'])} is not accepted: {wish[0].lower() + wish[1:]}"


def _locate_fault(model: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[list[str], list[str]]:
    """The path to a fault as the user knows it, and the keys of the innermost model on the path.

    If pydantic chose among models by their `kind`, `loc` has that kind as a level, which the file does not have.
    """
    names: list[str] = []
    inner: type[BaseModel] = model
    options: tuple[type[BaseModel], ...] = (model,)
    for part in loc:
        kinds = [option for option in options if part in _literal_values(option, "kind")]
        if kinds and not any(part in option.model_fields for option in options):
            inner = kinds[0]
            options = (inner,)
            continue
        names.append(str(part))
        fields = [option.model_fields[part] for option in options if part in option.model_fields]
        if fields:
            options = _models_in(fields[0].annotation)
            inner = options[0] if len(options) == 1 else inner
    return names, list(inner.model_fields)


def _literal_values(model: type[BaseModel], field: str) -> tuple[Any, ...]:
    """The values of a field of literals; empty for any other field."""
    return get_args(model.model_fields[field].annotation) if field in model.model_fields else ()


def _models_in(annotation: Any) -> tuple[type[BaseModel], ...]:
    """The models in an annotation: the annotation itself, or the members of a union, list or dictionary."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return (annotation,)
    return tuple(model for part in get_args(annotation) for model in _models_in(part))


# The settings of a model: what users may write, for lists and help.


class Setting(NamedTuple):
    """A key of a model as users set it."""

    key: str
    accepts: str
    default: str
    """As it is written; empty for a key that must be given."""
    meaning: str
    """The text below the field in the code."""


def list_settings(model: type[BaseModel], prefix: str = "") -> list[Setting]:
    """The keys of a model, in the order of the code, each behind a prefix."""
    meanings = _field_docs(model)
    return [
        Setting(
            prefix + name,
            _describe_type(field.annotation, field.metadata),
            "" if field.is_required() else _format_default(field.get_default(call_default_factory=True)),
            meanings.get(name, ""),
        )
        for name, field in model.model_fields.items()
    ]


def _field_docs(model: type[BaseModel]) -> dict[str, str]:
    """The texts below the fields of a class and of those that it derives from."""
    found = {}
    for kind in reversed(model.__mro__):
        if not issubclass(kind, Frozen) or kind is Frozen:
            continue
        try:
            (described,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        except OSError:  # a class that no file holds
            continue
        assert isinstance(described, ast.ClassDef)
        for field, text in pairwise(described.body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                found[field.target.id] = " ".join(str(text.value.value).split())
    return found


KINDS_OF_VALUES: dict[Any, str] = {str: "text", int: "whole number", float: "number", bool: "true, false"}
BOUNDS = {"ge": "from", "gt": "above", "le": "to", "lt": "below"}


def _describe_type(annotation: Any, metadata: Collection[Any] = ()) -> str:
    """The values of a type, with the bounds of numbers."""
    if get_origin(annotation) is Literal:
        return ", ".join(map(str, get_args(annotation)))
    if annotation is type(None):
        return "null"
    if get_origin(annotation) is None:
        kind = KINDS_OF_VALUES.get(annotation, "name")
        bounds = [
            f"{word} {getattr(bound, name):g}"
            for name, word in BOUNDS.items()
            for bound in metadata
            if getattr(bound, name, None) is not None and getattr(bound, name) < MANY
        ]
        return " ".join([kind, *bounds])
    if get_origin(annotation) in (dict, list, tuple):
        return {dict: "mapping", list: "list", tuple: "list"}[get_origin(annotation)]
    return " or ".join(_describe_type(part, metadata) for part in get_args(annotation))


MANY = 1 << 20
"""An upper bound from here on guards against files of another kind, and tells a reader nothing."""


def _format_default(value: Any) -> str:
    """A default as a user writes it."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value) if isinstance(value, str | int | float) else ""
