"""The verbs: for each one a request, a function and an answer, used by the command line and by `import harness`.

`VERBS` is the table of all verbs. A verb's module is imported when the verb is used.
"""

from typing import NamedTuple


class Verb(NamedTuple):
    """A verb of the command line, or a verb with an action, such as `data build`."""

    summary: str
    """The first line of its help, and of the docstring of its function."""
    function: str
    """The function, as module:name."""


VERBS = {
    "list": Verb(
        "List the strategies, graphs, machines, experiments, figures of papers, or keys of --set.",
        "harness.cli.commands.listing:list_names",
    ),
    "data fetch": Verb("Download the files of a graph.", "harness.cli.commands.data:fetch"),
    "data import": Verb(
        "Make a card for your own files, and build the graph.", "harness.cli.commands.data:import_"
    ),
    "data build": Verb(
        "Write the store of a graph, in the order of vertices that the options choose.",
        "harness.cli.commands.data:build",
    ),
    "data info": Verb(
        "Print the facts of a graph: its card, its store if it is built, and the parts of a partition.",
        "harness.cli.commands.describing:info",
    ),
    "data verify": Verb(
        "Compare a store with the checksums of its build.", "harness.cli.commands.data:verify"
    ),
    "data balance": Verb(
        "Print how evenly the nonzeros of a graph are distributed over blocks, for each permutation.",
        "harness.cli.commands.data:balance",
    ),
    "data export": Verb(
        "Write a built graph as a file for PyTorch Geometric.", "harness.cli.commands.exporting:export"
    ),
    "run": Verb(
        "Train with one strategy and record everything about the run.", "harness.cli.commands.running:run"
    ),
    "runs list": Verb(
        "List the recorded runs, the latest last.", "harness.cli.commands.recorded_runs:list_runs"
    ),
    "runs show": Verb(
        "Show the record of a run: its settings, result, memory and failure, and how to repeat it.",
        "harness.cli.commands.recorded_runs:show_run",
    ),
    "runs prune": Verb(
        "Remove the run folders that match all given options.",
        "harness.cli.commands.recorded_runs:prune_runs",
    ),
    "runs emulate": Verb(
        "Re-time an epoch of a recorded run on the network of another machine.",
        "harness.cli.commands.emulating:emulate",
    ),
    "new strategy": Verb(
        "Make the package of a new strategy: its class, a test, a CI workflow.",
        "harness.cli.commands.scaffolding:new_strategy",
    ),
    "new project": Verb(
        "Make a project: a folder with dataset cards, machine cards and workflows.",
        "harness.cli.commands.scaffolding:new_project",
    ),
    "check": Verb(
        "Check a strategy: results equal to serial training, elements equal to its formula, invalid grids refused.",
        "harness.cli.commands.checking:check",
    ),
    "words": Verb(
        "Compare the elements that a rank sends with the formulas of the strategy and of its paper.",
        "harness.cli.commands.counting:words",
    ),
    "predict": Verb("Predict the time of an epoch on a machine.", "harness.cli.commands.predicting:predict"),
    "advise": Verb(
        "Find the fastest strategies and grids for a graph on a machine.",
        "harness.cli.commands.advising:advise",
    ),
    "plan": Verb(
        "List the runs of experiments, or their jobs, before anything runs.",
        "harness.cli.commands.planning:plan",
    ),
    "collect": Verb("Join the records of all runs into tables.", "harness.cli.commands.evaluating:collect"),
    "compare": Verb(
        "Compare two runs, or the same runs of two commits.", "harness.cli.commands.comparing:compare"
    ),
    "figures": Verb("Draw the figures of the collected tables.", "harness.cli.commands.evaluating:figures"),
    "report": Verb(
        "Write the report of collected tables, or of the packs of several groups, as one HTML page.",
        "harness.cli.commands.evaluating:report",
    ),
    "pack": Verb(
        "Pack recorded runs into one archive, which others can verify and compare with theirs.",
        "harness.cli.commands.publishing:pack",
    ),
    "verify": Verb(
        "Verify a pack of others without repeating its runs.", "harness.cli.commands.publishing:verify"
    ),
    "claims": Verb(
        "Compare the claims of papers with our own values, with a verdict for each.",
        "harness.cli.commands.judging:claims",
    ),
    "external run": Verb(
        "Run a command, and record what it prints.", "harness.cli.commands.recording_programs:run_program"
    ),
    "external read": Verb(
        "Record the run that a log shows.", "harness.cli.commands.recording_programs:read_logs"
    ),
    "doctor": Verb(
        "Check this machine: what it can run, and what is missing.", "harness.cli.commands.surveying:doctor"
    ),
    "completion": Verb(
        "Print the completion script of this command for a shell.", "harness.cli.completion:completion"
    ),
}
GROUPS = {
    "data": "Fetch, import, build, describe, verify or export a graph.",
    "runs": "List the recorded runs, show one, remove some, or re-time one on another network.",
    "new": "Make the package of a strategy, or a project.",
    "external": "Record a run of another program: run it here, or read its log.",
}
"""The verbs that have actions."""
SECTIONS = {
    "Names and graphs": ("list", "data"),
    "Run, and reproduce figures": ("run", "runs", "plan", "collect", "figures", "report"),
    "Add a strategy": ("new", "check"),
    "Choose a strategy": ("predict", "advise"),
    "Understand a run": ("words", "compare"),
    "Publish": ("pack", "verify"),
    "Other programs and papers": ("external", "claims"),
    "This machine": ("doctor",),
}
"""The parts of the program's help. Verbs that are in no part are named below them."""
FUNCTIONS = ("advise", "check", "compare", "load", "predict", "run")
"""The functions of `import harness`."""
