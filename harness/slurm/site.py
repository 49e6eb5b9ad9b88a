"""config/site.yaml: what a user says once about the place where jobs run. Not committed; without it, the cards hold."""

from pathlib import Path

from pydantic import Field

from harness.documents import read_yaml
from harness.spec.machine_card import Slurm, load_machine_card
from harness.validation import Frozen, validated

FILE = Path("config") / "site.yaml"


class Site(Frozen):
    """Every key may be left out. Those that a machine's card has too are stronger here."""

    machine: str | None = None
    """The card of the machine, for experiments that name none."""
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    constraint: str | None = None
    sbatch: str | None = None
    minutes: float | None = Field(None, gt=0)
    job_minutes: float | None = Field(None, gt=0)


def load_site(root: Path) -> Site:
    """What the file says; nothing if there is none."""
    path = root / FILE
    told = read_yaml(path, str(FILE), may_be_empty=True) if path.exists() else {}
    return validated(Site, told, str(FILE))


def slurm_of(root: Path, machine: str, site: Site) -> Slurm | None:
    """How Slurm gives out a machine, by its card and by what the site says; nothing for a machine of one node."""
    slurm = load_machine_card(root, machine).slurm
    if slurm is None:
        return None
    stronger = {key: getattr(site, key) for key in Site.model_fields.keys() & Slurm.model_fields.keys()}
    return slurm.model_copy(update={key: value for key, value in stronger.items() if value is not None})
