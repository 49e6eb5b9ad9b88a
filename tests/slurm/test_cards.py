"""The cards of clusters: the source of every option, and the lines that start jobs and ranks, for 4 to 2048 ranks."""

import re
import shlex
from itertools import product
from pathlib import Path

import pytest
import yaml

from harness.runtime.slurm.executor import make_batch_line
from harness.runtime.slurm.resources import Site, request_job, request_place
from harness.runtime.slurm.srun import can_start_steps, make_python_command, make_step_command
from harness.spec.machine_card import Container, Slurm
from tests.slurm.project import Cluster
from tests.slurm.test_resources import CLUSTERS, ROOT, card

LINES = Path(__file__).with_name("lines.txt")
RECORDED = (
    *("cpu-cluster", "frontier", "gpu-cluster", "perlmutter", "perlmutter-80gb", "perlmutter-measured"),
    *("summit", "summit-one", "tuolumne"),
)
"""The cards whose lines are in the file. Any other card is held to the laws of all cards only."""
MADE = "python -m tests.slurm.test_cards"
WORLDS = [2**power for power in range(2, 12)]
MARK = re.compile(r"\[(\w+)\]")
FOLDERS = [Path("/home/me/harness"), Path("/scratch/me/datasets"), Path("/tmp")]
REFUSED = ("unrecognized option", "nvalid option", "nvalid --", "ambiguous")


def containers(name: str) -> list[Container]:
    """The containers that the comments of a card offer, each with its source."""
    text = (ROOT / "config" / "machines" / f"{name}.yaml").read_text()
    offered = re.findall(r"^#   container: (\{.+\}) +# \[\w+\]$", text, re.MULTILINE)
    return [Container.model_validate(yaml.safe_load(words)) for words in offered]


def lines() -> str:
    """The lines of the recorded cards. Those of Slurm's jobs are the executor's, without its own options."""
    made = []
    for name in RECORDED:
        slurm = card(name)
        for ranks in WORLDS:
            asked = request_job([ranks], slurm, 30) | request_place(Site(account="m1"), slurm)
            made += [
                f"{name} {ranks}: {make_batch_line(asked, slurm.scheduler)}",
                f"  {shlex.join(make_step_command(ranks, slurm))}",
            ]
        for box in containers(name):
            words = make_python_command(slurm.model_copy(update={"container": box}), FOLDERS, FOLDERS[0])
            made.append(f"{name} in {box.runtime}: {shlex.join(words)}")
    return "\n".join(made) + "\n"


def test_the_lines_of_recorded_cards_are_those_of_the_file() -> None:
    assert LINES.read_text() == lines(), f"run {MADE} > {LINES.relative_to(ROOT)} and read what changed"


def unsourced(text: str) -> list[str]:
    """The lines of `slurm:` without a source, or with one that no line above explains."""
    above, _, section = text.partition("\nslurm:\n")
    known = set(MARK.findall(above))
    options = [line for line in section.splitlines() if line.strip() and not line.rstrip().endswith(":")]
    return [
        line
        for line in options
        if not (named := MARK.findall(line.partition(" # ")[2])) or set(named) - known
    ]


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_option_of_a_card_stands_beside_its_source(name: str) -> None:
    assert unsourced((ROOT / "config" / "machines" / f"{name}.yaml").read_text()) == []


def test_an_option_without_a_source_is_seen() -> None:
    assert unsourced("# [a] a page\nslurm:\n  qos: x  # [a]\n  sbatch: y\n  srun: z  # [b]\n") == [
        "  sbatch: y",
        "  srun: z  # [b]",
    ]


def test_cards_of_machines_that_have_containers_offer_them() -> None:
    offered = {name: [box.runtime for box in containers(name)] for name in CLUSTERS}
    assert offered["perlmutter"] == ["shifter", "podman-hpc"]
    assert offered["frontier"] == offered["gpu-cluster"] == offered["cpu-cluster"] == ["apptainer"]


def test_the_settings_of_a_fabric_are_for_steps_of_several_nodes() -> None:
    """A plugin that is forced on a single node fails, or takes the network for nothing."""
    for name in CLUSTERS:
        assert not [key for key in card(name).environment if key.startswith(("NCCL_NET", "FI_"))], name


@pytest.mark.parametrize(
    ("scheduler", "batch", "line"),
    [
        (
            "flux",
            "flux batch --nodes=2 --nslots=2 --cores-per-slot=28 --gpus-per-slot=4 --time-limit=95m --queue=q "
            "--bank=m1 --exclusive",
            "flux run --nodes=2 --ntasks=8 --cores-per-task=7 --gpus-per-task=1 --exclusive -oexit-on-error",
        ),
        (
            "pbs",
            "qsub -l select=2:ncpus=28:ngpus=4 -l walltime=5700 -q q -A m1 --exclusive",
            "mpiexec -n 8 --ppn 4 -d 7 --cpu-bind depth",
        ),
        (
            "lsf",
            "bsub -nnodes 2 -W 95 -q q -P m1 --exclusive",
            "jsrun --nrs=8 --tasks_per_rs=1 --cpu_per_rs=7 --gpu_per_rs=1 --rs_per_host=4 --exit_on_error=1",
        ),
    ],
)
def test_other_schedulers_have_lines_of_their_own(scheduler: str, batch: str, line: str) -> None:
    """By their documentation; none of them was tried. A card's own words stand last, whatever they mean there."""
    nodes = {"ranks_per_node": 4, "cpus_per_rank": 7, "gpus_per_node": 4, "scheduler": scheduler}
    slurm = Slurm.model_validate({**nodes, "partition": "q", "sbatch": "--exclusive"})
    assert (
        make_batch_line(request_job([8], slurm, 95) | request_place(Site(account="m1"), slurm), scheduler)
        == batch
    )
    assert shlex.join(make_step_command(8, slurm)) == line


def test_a_rank_a_node_and_a_job_without_gpus_have_their_lines_too() -> None:
    slurm = Slurm(ranks_per_node=1, cpus_per_rank=7)
    line = "flux batch --nodes=3 --nslots=3 --cores-per-slot=7 --time-limit=5m"
    assert make_batch_line(request_job([3], slurm, 5), "flux") == line


def test_allocations_are_detected_and_ranks_are_not_allocations() -> None:
    flux, pbs, lsf = {"FLUX_URI": "local://x"}, {"PBS_JOBID": "1"}, {"LSB_JOBID": "1"}
    assert can_start_steps(flux, "flux") and can_start_steps(pbs, "pbs") and can_start_steps(lsf, "lsf")
    assert not can_start_steps({**flux, "FLUX_TASK_RANK": "0"}, "flux")
    assert not can_start_steps({**pbs, "PALS_RANKID": "0"}, "pbs")
    assert not can_start_steps({**lsf, "JSM_NAMESPACE_RANK": "0"}, "lsf")
    assert not can_start_steps(pbs, "flux") and not can_start_steps(flux)


def test_slurm_knows_every_option_of_the_cards(cluster: Cluster) -> None:
    """No such nodes are here, so srun and sbatch may refuse the request, but no word of it."""
    cards = [slurm for slurm in map(card, CLUSTERS) if slurm.scheduler == "slurm"]
    for slurm, ranks in product(cards, WORLDS):
        command, *options = make_step_command(ranks, slurm)
        job_line = make_batch_line(request_job([ranks], slurm, 30) | request_place(Site(), slurm))
        for asked in (
            shlex.join([command, "--test-only", *options, "true"]),
            f"{job_line} --test-only --wrap true",
        ):
            said = cluster.call("sh", "-c", f"{asked} 2>&1 || true")
            assert not any(word in said for word in REFUSED), (asked, said)


if __name__ == "__main__":
    print(lines(), end="")
