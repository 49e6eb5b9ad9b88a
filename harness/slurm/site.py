"""config/site.yaml: the user's account and choices for the place where jobs run. Not committed, and optional."""

from pathlib import Path

from pydantic import Field

from harness.documents import read_yaml
from harness.spec.machine_card import Slurm, load_machine_card
from harness.validation import Frozen, validated

FILE = Path("config") / "site.yaml"


class Site(Frozen):
    """The keys of the file, all optional. A key that the machine card has too overrides the card."""

    machine: str | None = None
    """The machine card of experiments that name none."""
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    constraint: str | None = None
    sbatch: str | None = None
    minutes: float | None = Field(None, gt=0)
    job_minutes: float | None = Field(None, gt=0)


def load_site(root: Path) -> Site:
    """The keys of the file; without a file, none."""
    path = root / FILE
    keys = read_yaml(path, str(FILE), may_be_empty=True) if path.exists() else {}
    return validated(Site, keys, str(FILE))


def slurm_of(root: Path, machine: str, site: Site) -> Slurm | None:
    """The `slurm` of a machine card with the site's overrides; None for a machine without Slurm."""
    slurm = load_machine_card(root, machine).slurm
    if slurm is None:
        return None
    overrides = {key: getattr(site, key) for key in Site.model_fields.keys() & Slurm.model_fields.keys()}
    return slurm.model_copy(update={key: value for key, value in overrides.items() if value is not None})
