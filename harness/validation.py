"""One way to turn data from outside (YAML, JSON, options) into a frozen model, with errors for people."""

from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from harness.errors import UserError


class Frozen(BaseModel):
    """A record that cannot change and knows all its fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Model = TypeVar("Model", bound=BaseModel)


def validated(model: type[Model], data: Any, where: str) -> Model:
    """`data` as a `model`, or an error that names each field, its value and what is accepted."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        faults = "; ".join(_fault(model, detail) for detail in error.errors())
        raise UserError(f"{where}: {faults}.") from None


def unknown(kind: str, name: str, known: list[str], way_out: str = "") -> UserError:
    """The error for a name that nobody knows, with the names that come near it and all that are known."""
    near = get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    listing = ", ".join(sorted(known)) or "none"
    return UserError(f"{kind} {name!r} is unknown.{hint} Known: {listing}.{' ' + way_out if way_out else ''}")


def _fault(model: type[BaseModel], detail: ErrorDetails) -> str:
    field = ".".join(str(part) for part in detail["loc"]) or "the whole"
    if detail["type"] == "extra_forbidden":
        return f"{field} is not a key here; accepted keys: {', '.join(_keys(model, detail['loc'][:-1]))}"
    if detail["type"] == "missing":
        return f"{field} is missing"
    wish = detail["msg"].removeprefix("Value error, ")
    return f"{field} = {detail['input']!r} is not accepted: {wish[0].lower() + wish[1:]}"


def _keys(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """The field names of the model at the end of `path`."""
    here: Any = model
    for part in path:
        fields = getattr(here, "model_fields", {})
        here = fields[part].annotation if part in fields else here
    return list(getattr(here, "model_fields", model.model_fields))
