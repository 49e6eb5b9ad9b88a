"""Print the page docs/reference/settings.md from the models of a spec: `python docs/write_settings.py > PAGE`."""

from collections.abc import Iterable

from harness.base.validation import Setting
from harness.experiment.trained_models import describe_strategies
from harness.spec.spec import list_spec_settings

HEADER = """# Settings

<!-- Made by `python docs/write_settings.py > docs/reference/settings.md`. -->

    harness list settings
    harness run --strategy cagnet-1d --dataset tiny-sbm --ranks 2 --set training.epochs=5

`--set KEY=VALUE` sets a key of a run. Experiments and the columns of the table `runs` have the same keys. All keys
together are the [spec](../start/glossary.md#spec-run-id) of a run; a key that is not set has its default.
"""
TITLES = {
    "strategy": "The strategy",
    "dataset": "The graph",
    "ranks": "Ranks and grid",
    "model": "The model",
    "training": "Training",
    "measure": "What is recorded in addition",
    "protocol": "The rest",
}
"""The headings of sections, by the first word of the first key of each."""
PARAMETERS = """## Parameters of the strategies

A parameter `KEY` is set by `--set strategy.params.KEY=VALUE`. `harness list strategies --strategy NAME` prints
the same."""


def format_page() -> str:
    """Return the text of the page."""
    sections, title = [HEADER], ""
    by_section: dict[str, list[Setting]] = {}
    for setting in list_spec_settings():
        title = TITLES.get(setting.key.split(".")[0], title)
        by_section.setdefault(title, []).append(setting)
    for title, settings in by_section.items():
        sections += [f"## {title}\n", _format_table((setting.key, setting) for setting in settings)]
    sections.append(PARAMETERS + "\n")
    for strategy in describe_strategies():
        if strategy.parameters:
            rows = [(setting.key.split(".")[-1], setting) for setting in strategy.parameters]
            sections += [f"### {strategy.name}\n", _format_table(rows)]
    return "\n".join(sections)


def _format_table(rows: Iterable[tuple[str, Setting]]) -> str:
    lines = ["| key | accepted | default | meaning |", "| --- | --- | --- | --- |"]
    for key, setting in rows:
        cells = setting.accepts, f"`{setting.default}`" if setting.default else "", setting.meaning
        lines.append(f"| `{key}` | {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    print(format_page(), end="")
