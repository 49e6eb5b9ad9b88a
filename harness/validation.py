"""One way to turn data from outside (YAML, JSON, options) into a frozen model, with errors for people."""

import re
import reprlib
from collections.abc import Callable
from difflib import get_close_matches
from typing import Annotated, Any, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from harness.errors import UserError


class Frozen(BaseModel):
    """A record that cannot change, knows all its fields, and holds no infinity and no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


Model = TypeVar("Model", bound=BaseModel)
FAULTS = 5
"""As many are told at once."""


def legal_name(name: str) -> str:
    """A name that is a file's too, and no option of a command; a ValueError says what names are made of."""
    if not re.fullmatch(r"\w[\w.-]{0,99}", name):
        raise ValueError(
            "a name begins with a letter, a digit or '_', and has these, '.' and '-' only, 100 characters at most"
        )
    return name


Name = Annotated[str, AfterValidator(legal_name)]
Seed = Annotated[int, Field(ge=0, lt=1 << 63)]
RANKS, CLASSES, VERTICES, WIDTH, DEGREE = 1 << 20, 1 << 20, 1 << 40, 1 << 24, 1 << 20
"""The most that a request can ask for: above them is a slip of the keyboard, or a file of another kind."""


def validated(model: type[Model], data: Any, where: str, told: Callable[[str], str] = str) -> Model:
    """`data` as a `model`, or an error that names each field, its value and what is accepted.

    `told` turns the key of a field into what its writer has typed, where that is another word.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        faults = error.errors()
        more = f"; and {len(faults) - FAULTS} more" if len(faults) > FAULTS else ""
        listed = "; ".join(_fault(model, detail, told) for detail in faults[:FAULTS])
        raise UserError(f"{where}: {listed}{more}.") from None


def clipped(text: str, most: int) -> str:
    """The text on one line, its end left out where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def shown(value: Any) -> str:
    """A value as an error shows it: short, whatever it is."""
    return clipped(reprlib.repr(value), 80)


def unknown(kind: str, name: str, known: list[str], way_out: str = "") -> UserError:
    """The error for a name that nobody knows, with the names that come near it and all that are known."""
    near = get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    listing = ", ".join(sorted(known)) or "none"
    return UserError(
        f"{kind} {shown(name)} is unknown.{hint} Known: {listing}.{' ' + way_out if way_out else ''}"
    )


def _fault(model: type[BaseModel], detail: ErrorDetails, told: Callable[[str], str]) -> str:
    names, keys = _place(model, detail["loc"])
    field = clipped(".".join([told(name) for name in names[:1]] + names[1:]), 80) or "the whole"
    if detail["type"] == "extra_forbidden":
        return f"{field} is not a key here; accepted keys: {', '.join(keys)}"
    if detail["type"] == "missing":
        return f"{field} is missing"
    wish = clipped(detail["msg"].removeprefix("Value error, "), 400)
    return f"{field} = {shown(detail['input'])} is not accepted: {wish[0].lower() + wish[1:]}"


def _place(model: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[list[str], list[str]]:
    """The path to a fault as its writer knows it, and the keys of the innermost model on it.

    Where pydantic chose among models by their `kind`, it puts that kind into `loc`; in the file it is no level.
    """
    names: list[str] = []
    inner: type[BaseModel] = model
    here: tuple[type[BaseModel], ...] = (model,)
    for part in loc:
        kinds = [option for option in here if part in _values(option, "kind")]
        if kinds and not any(part in option.model_fields for option in here):
            inner = kinds[0]
            here = (inner,)
            continue
        names.append(str(part))
        fields = [option.model_fields[part] for option in here if part in option.model_fields]
        if fields:
            here = _models(fields[0].annotation)
            inner = here[0] if len(here) == 1 else inner
    return names, list(inner.model_fields)


def _values(model: type[BaseModel], field: str) -> tuple[Any, ...]:
    """What a field of literals may be."""
    return get_args(model.model_fields[field].annotation) if field in model.model_fields else ()


def _models(annotation: Any) -> tuple[type[BaseModel], ...]:
    """The models that an annotation speaks of: itself, or those of its union, list or dictionary."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return (annotation,)
    return tuple(found for part in get_args(annotation) for found in _models(part))
