"""The two errors that a user may meet. Any other exception is a defect of the harness."""


class UserError(ValueError):
    """The request was wrong: the message gives the fault, the value, what is accepted and the way out. Exit code 2."""


class RunError(RuntimeError):
    """The request was right, and the run did not succeed. Exit code 1."""


EXTRAS = {
    "plots": ("matplotlib", "seaborn", "jinja2"),
    "partition": ("pymetis", "mtkahypar"),
    "ogb": ("ogb",),
    "pyg": ("torch_geometric",),
    "slurm": ("snakemake", "snakemake_executor_plugin_slurm"),
}
"""The packages that not everybody needs, by the extra of pyproject.toml that installs them."""


def missing_package(error: ModuleNotFoundError) -> UserError | None:
    """The error for a package of an extra that is not installed, with the way out; None for any other module."""
    package = (error.name or "").partition(".")[0]
    for extra, packages in EXTRAS.items():
        if package in packages:
            return UserError(
                f"This needs the package {package}, which is not installed. Install it: {install_extra(extra)}"
            )
    return None


def install_extra(extra: str) -> str:
    """The command that installs the packages of an extra."""
    return f"pip install 'parallel-gnn-harness[{extra}]'"
