"""Validation of external data (YAML, JSON, options) into frozen models, with readable errors."""

import ast
import inspect
import re
import reprlib
import textwrap
from collections.abc import Callable, Collection
from difflib import get_close_matches
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, ErrorDetails, core_schema

from harness.base.errors import UserError


class Frozen(BaseModel):
    """An immutable model that rejects unknown fields, infinities and NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def added_later(default: Any, **constraints: Any) -> Any:
    """Return a field that a model gained after runs were recorded.

    Data leaves the field out while it has its default, so the ids of earlier runs stay.
    """
    return Field(default, exclude_if=lambda value: value == default, **constraints)


Model = TypeVar("Model", bound=BaseModel)
MAX_FAULTS = 5
"""The maximum number of faults in one message."""


def check_name(name: str) -> str:
    """Return the name if it is valid as a file name and not a command-line option; else raise a ValueError."""
    if not re.fullmatch(r"\w[\w.-]{0,99}", name):
        raise ValueError(
            "a name begins with a letter, a digit or '_', and contains only these, '.' and '-', at most 100 characters"
        )
    return name


class CheckedAs(NamedTuple):
    """Marks data that must validate as a model but is kept as it is: `Annotated[dict[str, Any], CheckedAs(Entry)]`."""

    model: type[BaseModel]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check_data, handler(source))

    def _check_data(self, data: Any) -> Any:
        self.model.model_validate(data)
        return data


Name = Annotated[str, AfterValidator(check_name)]
COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
"""The full name of a commit."""
Seed = Annotated[int, Field(ge=0, lt=1 << 63)]
RANKS, CLASSES, VERTICES, WIDTH, DEGREE = 1 << 20, 1 << 20, 1 << 40, 1 << 24, 1 << 20
"""Upper bounds on the numbers of a request. Larger ones are typing errors, or come from a file of another kind."""


def validate(
    model: type[Model],
    data: Any,
    where: str,
    name_field: Callable[[str], str] = str,
    context: Any = None,
) -> Model:
    """Return `data` validated as a `model`. The error names each invalid field, its value and the accepted values.

    `where` names the source of the data in errors. `name_field` converts the key of a field to what the user typed.
    Validators of the model may ask for `context`.
    """
    try:
        return model.model_validate(data, context=context)
    except ValidationError as error:
        faults = error.errors()
        more = f"; and {len(faults) - MAX_FAULTS} more" if len(faults) > MAX_FAULTS else ""
        listed = "; ".join(_describe_fault(model, detail, name_field) for detail in faults[:MAX_FAULTS])
        raise UserError(f"{where}: {listed}{more}.") from None


def clip_line(text: str, most: int) -> str:
    """Join text into one line and truncate it to `most` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def format_value(value: Any) -> str:
    """Format a value for an error message: short, and on one line."""
    return clip_line(reprlib.repr(value), 80)


def unknown_name_error(kind: str, name: str, known: list[str], way_out: str = "") -> UserError:
    """Return the error for an unknown name, with similar names and all known names."""
    hint, listing = suggest_names(name, known), ", ".join(sorted(known)) or "none"
    return UserError(
        f"{kind} {format_value(name)} is unknown.{hint} Known: {listing}.{' ' + way_out if way_out else ''}"
    )


def suggest_names(name: str, known: Collection[str]) -> str:
    """Return " Did you mean ...?" with the most similar names, or an empty string."""
    near = get_close_matches(name, known, n=3, cutoff=0.55)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def _describe_fault(model: type[BaseModel], detail: ErrorDetails, name_field: Callable[[str], str]) -> str:
    names, keys = _locate_fault(model, detail["loc"])
    field = clip_line(".".join([name_field(name) for name in names[:1]] + names[1:]), 80) or "the data"
    if detail["type"] == "extra_forbidden":
        hint, listing = suggest_names(names[-1], keys), f"ccepted keys: {', '.join(keys)}"
        return f"{field} is not a key here{f'.{hint} A' if hint else '; a'}{listing}"
    if detail["type"] == "missing":
        return f"{field} is missing"
    accepted = clip_line(detail["msg"].removeprefix("Value error, "), 400)
    return f"{field} = {format_value(detail['input'])} is not accepted: {accepted[0].lower() + accepted[1:]}"


def _locate_fault(model: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[list[str], list[str]]:
    """Return the path to a fault in the user's file, and the keys of the innermost model on the path.

    If pydantic selected a model by its `kind`, `loc` contains that kind as a level that the file does not have.
    """
    names: list[str] = []
    inner: type[BaseModel] = model
    options: tuple[type[BaseModel], ...] = (model,)
    for part in loc:
        kinds = [option for option in options if part in _literal_values(option, "kind")]
        if kinds and len(options) > 1:
            inner = kinds[0]
            options = (inner,)
            continue
        names.append(str(part))
        fields = [option.model_fields[part] for option in options if part in option.model_fields]
        if fields:
            models = _models_in(fields[0].annotation)
            inner = models[0] if len(models) == 1 else inner
            options = (*models, *(kind for model in models for kind in _list_subclasses(model)))
    return names, list(inner.model_fields)


def _literal_values(model: type[BaseModel], field: str) -> tuple[Any, ...]:
    """Return the values of a Literal field; empty for any other field."""
    return get_args(model.model_fields[field].annotation) if field in model.model_fields else ()


def _models_in(annotation: Any) -> tuple[type[BaseModel], ...]:
    """Return the models in an annotation: itself, or the members of a union, list or dictionary."""
    if isinstance(annotation, CheckedAs):
        return (annotation.model,)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return (annotation,)
    return tuple(model for part in get_args(annotation) for model in _models_in(part))


def _list_subclasses(model: type[BaseModel]) -> list[type[BaseModel]]:
    """Return the imported subclasses of a model, of which its `kind` may select one."""
    return [kind for direct in model.__subclasses__() for kind in (direct, *_list_subclasses(direct))]


# The settings of a model: what users may write, for lists and help.


class Setting(NamedTuple):
    """A key of a model as users set it."""

    key: str
    accepts: str
    default: str
    """As a user writes it; empty for a required key."""
    meaning: str
    """The docstring of the field."""


def list_settings(model: type[BaseModel], prefix: str = "") -> list[Setting]:
    """Return the keys of a model in declaration order, each with a prefix."""
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
    """Return the docstrings of the fields of a class and its base classes."""
    found = {}
    for kind in reversed(model.__mro__):
        if not issubclass(kind, Frozen) or kind is Frozen:
            continue
        try:
            (described,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        except OSError:  # a class without a source file
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
    """Describe the values of a type, with the bounds of numbers."""
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
            if getattr(bound, name, None) is not None and getattr(bound, name) < SHOWN_BOUND
        ]
        return " ".join([kind, *bounds])
    if get_origin(annotation) in (dict, list, tuple):
        return {dict: "mapping", list: "list", tuple: "list"}[get_origin(annotation)]
    return " or ".join(_describe_type(part, metadata) for part in get_args(annotation))


SHOWN_BOUND = 1 << 20
"""Larger upper bounds only guard against files of another kind, so help does not show them."""


def _format_default(value: Any) -> str:
    """Format a default as a user writes it."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value) if isinstance(value, str | int | float) else ""
