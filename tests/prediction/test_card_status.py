"""What a card says about its errors agrees with its sources and with the recorded benchmark."""

import re
from pathlib import Path

import pytest

from benchmarks.recorded_tables import table
from harness.prediction.calibration.calibrate import write_sections
from harness.prediction.calibration.links import make_constant
from harness.prediction.card_status import UNMEASURED, describe_card, find_further_error
from harness.prediction.epoch import RESIDUAL
from harness.runtime.provenance import describe_machine
from harness.spec.machine_card import CalibratedMachine, Constant, load_machine_card
from harness.spec.root import find_root

ROOT = find_root()


@pytest.mark.parametrize(
    ("name", "kind", "is_checked"),
    [
        ("local", "calibrated", True),
        ("ethernet", "calibrated", True),
        ("h200", "calibrated", False),
        ("perlmutter", "fitted", False),
        ("frontier", "typed", False),
    ],
)
def test_status_names_the_origin_of_a_card(name: str, kind: str, is_checked: bool) -> None:
    card = load_machine_card(ROOT, name)
    status = describe_card(card)
    assert (status.kind, status.is_checked) == (kind, is_checked)
    further = 1.0 if kind == "calibrated" else UNMEASURED
    assert find_further_error(card) == further
    assert ("further error" in status.coverage) == (further > 1)


def test_further_error_is_that_of_the_recorded_benchmark() -> None:
    assert table("trust", "held out inside")("factor", "with a further error") == UNMEASURED


def test_a_card_as_a_calibration_writes_it_is_calibrated() -> None:
    card = load_machine_card(ROOT, "perlmutter")
    assert card.links
    links = card.links.model_copy(update={"latency_us": Constant.model_validate(make_constant(3.0, 1.5))})
    assert describe_card(card.model_copy(update={"links": links})).kind == "calibrated"


@pytest.mark.parametrize(("name", "links"), [("local", "loopback"), ("ethernet", "links of")])
def test_checked_runs_of_a_card_are_those_of_the_recorded_benchmark(name: str, links: str) -> None:
    page = (ROOT / "benchmarks" / "results" / "prediction.md").read_text()
    lines = [line for line in page.splitlines() if re.match(rf"\S+, \d+ ranks, {links}", line)]
    counts = [re.search(r"; (\d+) of (\d+) inside", line) for line in lines]
    status = describe_card(load_machine_card(ROOT, name))
    assert status.inside == sum(int(found[1]) for found in counts if found)
    assert status.runs == sum(int(found[2]) for found in counts if found) > 100


def test_residual_covers_the_intended_share_of_runs_over_links() -> None:
    """The interval is wider than the residual, so at least 80 % of the runs over links are inside it."""
    assert RESIDUAL == 1.25
    status = describe_card(load_machine_card(ROOT, "ethernet"))
    assert status.inside >= 0.8 * status.runs


def test_new_constants_remove_the_runs_that_the_old_ones_predicted(tmp_path: Path) -> None:
    cards = tmp_path / "config" / "machines"
    cards.mkdir(parents=True)
    (cards / "local.yaml").write_text((ROOT / "config" / "machines" / "local.yaml").read_text())
    old = load_machine_card(tmp_path, "local")
    assert old.links and old.checked
    write_sections(tmp_path, "local", {"links": old.links.model_dump(mode="json", exclude_none=True)})
    new = load_machine_card(tmp_path, "local")
    assert new.checked is None and new.links == old.links and new.rates == old.rates


CPU = CalibratedMachine(cpu="AMD EPYC", cores=2)
GPU = CalibratedMachine(cpu="AMD EPYC", cores=2, gpu="NVIDIA H100")


@pytest.mark.parametrize(
    ("there", "here", "said"),
    [
        (CPU, CPU, []),
        (CPU, CPU.model_copy(update={"cores": 8}), ["2 cores", "8 cores"]),
        (CPU, CPU.model_copy(update={"cpu": "Xeon"}), ["AMD EPYC", "Xeon"]),
        (GPU, GPU.model_copy(update={"cores": 8}), []),
        (GPU, CPU, ["NVIDIA H100", "2 cores"]),
        (None, CPU, []),
    ],
)
def test_card_of_another_machine_says_so(
    there: CalibratedMachine | None, here: CalibratedMachine, said: list[str]
) -> None:
    card = load_machine_card(ROOT, "local").model_copy(update={"measured_on": there})
    status = describe_card(card, here)
    assert bool(status.measured_elsewhere) == bool(said)
    told = [*said, "harness doctor --calibrate"] if said else []
    assert all(word in (status.measured_elsewhere or "") and word in status.description for word in told)


def test_card_of_a_cluster_is_not_compared_with_the_machine_at_hand() -> None:
    card = load_machine_card(ROOT, "perlmutter").model_copy(update={"measured_on": GPU})
    assert describe_card(card, CPU).measured_elsewhere is None


def test_calibration_on_this_machine_is_recorded_as_such(tmp_path: Path) -> None:
    cards = tmp_path / "config" / "machines"
    cards.mkdir(parents=True)
    (cards / "local.yaml").write_text((ROOT / "config" / "machines" / "local.yaml").read_text())
    own = describe_machine("cpu")
    write_sections(tmp_path, "local", {"measured_on": own.model_dump(exclude_none=True)})
    card = load_machine_card(tmp_path, "local")
    assert card.measured_on == own and describe_card(card).measured_elsewhere is None
