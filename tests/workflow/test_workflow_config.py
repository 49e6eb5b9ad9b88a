"""The configuration accepts the values that Snakemake passes, and its mistakes are named in one line."""

from typing import Any

import pytest

from harness.base.errors import UserError
from harness.base.validation import validate
from harness.experiment.workflow.workflow_config import WorkflowConfig


def test_numbers_in_braces_arrive_as_text_and_count_as_numbers() -> None:
    config = validate(WorkflowConfig, {"build_jobs": {"reddit": "4", "tiny-sbm": 2}}, "config")
    assert [config.count_build_jobs(name) for name in ("reddit", "tiny-sbm", "other")] == [4, 2, 1]
    assert validate(WorkflowConfig, {"build_jobs": 3}, "config").count_build_jobs("other") == 3


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"build_jobs": 0}, ["build_jobs = 0", "1"]),
        ({"build_jobs": True}, ["build_jobs = True"]),
        ({"build_jobs": {"reddit": "many"}}, ["'many'"]),
        ({"scale": "large"}, ["scale = 'large'", "tiny", "laptop", "published"]),
        ({"experiment": "smoke"}, ["experiment = 'smoke'"]),
        ({"modules": [""]}, ["modules"]),
        ({"machin": "local"}, ["machin", "machine"]),
    ],
)
def test_wrong_values_are_refused_in_one_line(config: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(UserError) as refusal:
        validate(WorkflowConfig, config, "config")
    assert all(word in str(refusal.value) for word in ["config: ", *said])
    assert "\n" not in str(refusal.value)
