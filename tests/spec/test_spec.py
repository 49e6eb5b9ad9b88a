"""Two equal specs are one run; a wrong one is refused with field, value and what is accepted."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from harness.base.errors import UserError
from harness.base.validation import validate
from harness.spec.spec import Spec, canonical_json

GOOD: dict[str, Any] = {
    "strategy": "cagnet-1d",
    "dataset": {"name": "tiny-sbm", "permutation": "single", "seed": 1},
    "ranks": 4,
    "grid": {"p": 4},
    "machine": {"name": "local"},
}


def spec(**more: Any) -> Spec:
    return validate(Spec, {**GOOD, **more}, "test")


def test_the_run_id_is_a_function_of_the_content_alone() -> None:
    shuffled = json.loads(json.dumps(dict(reversed(GOOD.items()))))
    assert spec().run_id == validate(Spec, shuffled, "test").run_id
    code = f"from harness.spec.spec import Spec; print(Spec.model_validate({GOOD!r}).run_id)"
    env = {**os.environ, "PYTHONHASHSEED": "17"}
    elsewhere = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert elsewhere.stdout.strip() == spec().run_id


def test_a_spec_survives_its_file() -> None:
    text = canonical_json(spec().model_dump(mode="json"))
    again = validate(Spec, json.loads(text), "file")
    assert again == spec()
    assert again.run_id == spec().run_id


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"launch": 1},
        {"protocol": "faithful"},
        {"precision": "float64"},
        {"machine": {"name": "local", "threads_per_rank": 2}},
        {"machine": {"name": "local", "composed_from": 0}},
        {"training": {"epochs": 11}},
        {"dataset": "tiny-sbm"},
        {"dataset": {"name": "tiny-sbm", "partition": "metis", "parts": 4, "seed": 1}},
        {"strategy": {"name": "cagnet-1d", "params": {"a": 1}}},
    ],
)
def test_every_part_of_a_spec_is_in_its_id(change: dict[str, Any]) -> None:
    assert spec(**change).run_id != spec().run_id


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"training": {"epochs": 0}}, ["training.epochs = 0", "1"]),
        ({"precision": "float16"}, ["precision", "float16", "float32", "float64"]),
        ({"model": {"hiden": 3}}, ["model.hiden", "layers, hidden"]),
        ({"model": {"residual": True}}, ["model", "projection"]),
        ({"model": {"heads": 4}}, ["heads = 4", "8", "gat"]),
        ({"grid": {"q": 4}}, ["grid.q", "'p'", "'fibre'"]),
        ({"grid": {"p": 3}}, ["p=3", "4 ranks"]),
        ({"grid": {"p": -4}}, ["p=-4"]),
        ({"machine": {"name": "any", "engine": "nccl", "composed_from": 1}}, ["composed_from = 1", "gloo"]),
        ({"colour": "red"}, ["colour", "protocol", "launch"]),
        ({"ranks": "many"}, ["ranks", "many"]),
        ({"dataset": {"permutation": "none"}}, ["dataset.name"]),
        ({"dataset": {"name": "x", "partition": "metis"}}, ["dataset.parts = 0"]),
        (
            {"dataset": {"name": "x", "partition": "metiss", "parts": 2}},
            ["partition = 'metiss'", "file:NAME"],
        ),
    ],
)
def test_a_wrong_spec_names_field_value_and_what_is_accepted(change: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(UserError) as refusal:
        spec(**change)
    assert all(word in str(refusal.value) for word in ["test", *said]), str(refusal.value)


def test_a_spec_is_frozen() -> None:
    with pytest.raises(ValidationError):
        spec().ranks = 5  # type: ignore[misc]


def test_the_label_is_for_people() -> None:
    assert spec().label == f"tiny-sbm-cagnet-1d-p4-s0-{spec().run_id[:6]}"
