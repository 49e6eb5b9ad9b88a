"""The schema: every table of the project, with the type and meaning of each column.

A run folder holds all tables except `runs` and `failures`. Collecting joins the tables of all runs, with `run_id` as
the first column, and adds `runs` with one row per run and `failures` with one row per run that is not ok. Text is never
null: an empty text means that there is no value. A number that does not apply is null, except in the key of a ledger,
where -1 means no layer or no peer. Columns of `runs` that come from the spec have the dotted names of `--set` and of
experiments (`model.hidden`). docs/write_tables.py writes the page docs/reference/tables.md from this module.
"""

from harness.ledger import AxisName
from harness.results.error_origin import find_error_origin
from harness.results.table_schema import (
    INTEGER,
    NULLABLE,
    REAL,
    RECORD_SCHEMA,
    SCHEMA,
    TEXT,
    TIME,
    TRUTH,
    Column,
    TableSchema,
)

MISSING = "missing"
SOURCES = ("measured", "external", "emulated", "predicted", "published")
OK, DIVERGED, FAILED = "ok", "diverged", "failed"
STATUSES = (OK, "oom", "timeout", DIVERGED, FAILED, "refused")
SETTLED = (OK, "oom", "timeout", DIVERGED)
"""Statuses of runs that are not repeated. Training is deterministic, so a diverged run would diverge again. Refused and
failed runs may succeed later."""
WARMUP_DROPPED, PAPER_EPOCHS = 2, 10


def _make_columns(part: str, *columns: tuple[str, str, str] | Column) -> tuple[Column, ...]:
    """Return columns that come from one part of the record."""
    return tuple(
        column._replace(part=part) if isinstance(column, Column) else Column(*column, part)
        for column in columns
    )


EPOCH_AND_RANK = (
    Column("epoch", INTEGER, "number of the epoch; timed epochs count from 0, warm-up epochs are negative"),
    Column("rank_id", INTEGER, "number of the rank that measured it", earlier="rank"),
)
ELEMENTS = (
    Column("elements_payload", REAL, "elements of the full logical buffers", earlier="words_payload"),
    Column(
        "elements_received",
        REAL,
        "elements that this rank receives if collectives are rings",
        earlier="words_received",
    ),
)

KEY = (
    ("layer", INTEGER),
    ("direction", TEXT),
    ("phase", TEXT),
    ("op", TEXT),
    ("axis", TEXT),
    ("peer", INTEGER),
    ("tensor", TEXT),
)
"""The columns of the key of a ledger row."""

EPOCHS = TableSchema(
    "epochs",
    "one epoch on one rank",
    EPOCH_AND_RANK
    + _make_columns(
        "",
        ("seconds", REAL, "wall time of the epoch on this rank; the epoch time is that of the slowest rank"),
        (
            "loss",
            REAL,
            "training loss of the epoch, the same on every rank; not finite in the last epoch of a diverged run",
        ),
    ),
)

LEDGER = TableSchema(
    "ledger",
    "the work of one rank under one key in one epoch; docs/concepts/ledger.md explains how it is counted",
    EPOCH_AND_RANK
    + _make_columns(
        "",
        ("layer", INTEGER, "layer of the model from 0; -1 outside any layer"),
        ("direction", TEXT, "forward or backward"),
        ("phase", TEXT, "the place in the algorithm"),
        ("op", TEXT, "the operation; glue is time within a phase but outside any op"),
        ("axis", TEXT, "grid axis that the operation ran over; empty for local work"),
        ("peer", INTEGER, "the other rank of a send or recv; -1 for other operations"),
        ("tensor", TEXT, "the tensor that was moved or computed; empty if there is none"),
        ("calls", INTEGER, "number of calls"),
    )
    + ELEMENTS
    + _make_columns(
        "",
        (
            "bytes",
            INTEGER,
            "bytes passed to the communication library, including padding and in the wire type",
        ),
        ("seconds", REAL, "time under this key; the rows of an epoch add up to its length"),
        (
            "in_flight_seconds",
            REAL,
            "time during which an asynchronous collective was in flight; never summed with seconds",
        ),
        ("flops", INTEGER, "floating-point operations, in a replay"),
        ("bytes_touched", INTEGER, "bytes read and written, in a replay"),
    ),
)

ACCURACY = TableSchema(
    "accuracy",
    "one split of the vertices at one evaluation of the full graph",
    _make_columns(
        "",
        ("epoch", INTEGER, "the epoch after which it was evaluated"),
        (
            "train_seconds",
            REAL,
            "training time before the evaluation, including warm-up, excluding evaluations and setup_seconds",
        ),
        ("eval_seconds", REAL, "time of the evaluation"),
        ("split", TEXT, "train, valid or test"),
        (
            "accuracy",
            REAL,
            "share of labelled vertices predicted correctly, or micro F1 if multi-label, or the score that accuracy_by "
            "of runs names; null if none are labelled",
        ),
    ),
)

MEMORY = TableSchema(
    "memory",
    "one persistent tensor of one rank, or the peaks of the rank (with an empty tensor)",
    (Column("rank_id", INTEGER, "number of the rank", earlier="rank"),)
    + _make_columns(
        "",
        ("host_peak_bytes", INTEGER, "peak resident size of the process; 0 in rows of tensors"),
        (
            "device_peak_bytes",
            INTEGER,
            "peak allocation on the device; 0 without a device and in rows of tensors",
        ),
        ("persistent_bytes", INTEGER, "bytes that the tensor holds between epochs; 0 in the row of peaks"),
        ("tensor", TEXT, "name of the tensor; empty in the row of peaks"),
    ),
)

UTILISATION = TableSchema(
    "utilisation",
    "one window of an epoch on one rank, if the spec asks for it (measure.utilisation_ms)",
    EPOCH_AND_RANK
    + _make_columns(
        "",
        ("window", INTEGER, "number of the window, from 0 at the start of the epoch"),
        (
            "seconds",
            REAL,
            "length of the window: measure.utilisation_ms, or less for the last window of an epoch",
        ),
        (
            "computing_seconds",
            REAL,
            "seconds in ops that compute; the remaining time is neither computing nor communicating",
        ),
        ("communicating_seconds", REAL, "seconds in ops that send, receive, or wait for either"),
        (
            "device_percent",
            REAL,
            "utilisation of the GPU in the last report of its driver; null without reports",
        ),
    ),
)

TAPE = TableSchema(
    "tape",
    "one event on one rank, in order, in an extra epoch after the last one, if the spec asks for it (measure.tape)",
    EPOCH_AND_RANK
    + _make_columns(
        "",
        ("event", INTEGER, "number of the event on this rank, from 0"),
        *((name, dtype, "as in the table ledger") for name, dtype in KEY),
        ("calls", INTEGER, "number of calls"),
    )
    + ELEMENTS
    + _make_columns(
        "",
        (
            "bytes",
            INTEGER,
            "bytes passed to the communication library, including padding and in the wire type",
        ),
        ("cpu_seconds", REAL, "CPU seconds of the event"),
        ("leaves", TRUTH, "whether a later event waits for the result of its call"),
        ("waits_for", INTEGER, "the event whose call this event waits for; -1 for none"),
        (
            "travels_with",
            INTEGER,
            "the event whose call carries the elements of this event; -1 for its own call",
        ),
    ),
)

RUN_TABLES = {
    table.name: table._replace(number=RECORD_SCHEMA)
    for table in (EPOCHS, LEDGER, ACCURACY, MEMORY, UTILISATION, TAPE)
}
"""The tables of a run folder."""

RUN_ID = Column(
    "run_id",
    TEXT,
    "hash of the spec; the name of the run folder, and the key that joins the tables",
    "record",
)

RUNS = TableSchema(
    "runs",
    "one launch of one spec, or one value that was predicted or published for it",
    (
        RUN_ID,
        *_make_columns(
            "record",
            ("label", TEXT, "readable name of the run"),
            (
                "origin",
                TEXT,
                "the folder of runs that it comes from, as given to `collect`; empty if there was only one",
            ),
            (
                "status",
                TEXT,
                "ok, oom, timeout, diverged (a non-finite number), failed, refused, or missing (planned but not "
                "recorded)",
            ),
            (
                "source",
                TEXT,
                "measured, external (another program), emulated, predicted or published; empty when missing",
            ),
        ),
        *_make_columns(
            "spec",
            ("strategy.name", TEXT, "the strategy"),
            ("strategy.params", TEXT, "parameters of the strategy, as JSON"),
            ("dataset.name", TEXT, "the dataset"),
            ("dataset.permutation", TEXT, "order of the vertices: none, single or double"),
            ("dataset.seed", NULLABLE, "seed of the order"),
            (
                "dataset.partition",
                TEXT,
                "parts of the vertices: block, a method of partitioning, or file:NAME",
            ),
            (
                "dataset.parts",
                NULLABLE,
                "number of parts; 0 for block, which each strategy splits itself",
            ),
            Column("ranks", NULLABLE, "number of ranks", title="ranks", unit="whole"),
            ("grid", TEXT, "short form of the grid, such as x2y2z1"),
            *(
                (f"grid.{axis.value}", NULLABLE, f"size of axis {axis.value}; null without this axis")
                for axis in AxisName
            ),
            ("model.kind", TEXT, "the model"),
            ("model.layers", NULLABLE, "number of layers"),
            ("model.hidden", NULLABLE, "width of the hidden layers; for gat, the width of one head"),
            ("model.heads", NULLABLE, "attention heads, if the model is gat"),
            ("model.order", TEXT, "the first step of a convolution: aggregate_first, combine_first or best"),
            ("model.projection", TRUTH, "whether features are first projected to the hidden width"),
            ("model.norm", TRUTH, "whether layers are normalised"),
            ("model.activation", TEXT, "relu or none"),
            ("model.dropout", REAL, "dropout rate of the output of a layer"),
            (
                "model.residual",
                TRUTH,
                "whether the input of a layer is added to its output (residual connections)",
            ),
            ("training.epochs", NULLABLE, "timed epochs of the spec"),
            ("training.warmup", NULLABLE, "warm-up epochs before the timed epochs"),
            ("training.optimizer", TEXT, "the optimizer"),
            ("training.lr", REAL, "learning rate of the optimizer"),
            ("training.weight_decay", REAL, "weight decay of the optimizer"),
            ("training.features", TRUTH, "whether the input features are trained too"),
            ("training.evaluate_every", NULLABLE, "epochs between evaluations; 0 means once, at the end"),
            ("training.batch", NULLABLE, "vertices per mini-batch; 0 for the full graph"),
            ("training.target", REAL, "accuracy on test vertices at which training stops; 0 for no target"),
            ("training.recompute", TRUTH, "whether layers are recomputed in the backward pass"),
            ("training.cuda_graph", TRUTH, "whether timed epochs are replayed from a CUDA graph"),
            (
                "measure.utilisation_ms",
                NULLABLE,
                "milliseconds per window of the table utilisation; 0 for no windows",
            ),
            ("measure.tape", TRUTH, "whether an extra epoch after the last one is recorded event by event"),
            ("protocol", TEXT, "corrected, or faithful to the code of a paper"),
            ("precision", TEXT, "float32 or float64"),
            ("machine.name", TEXT, "the machine card"),
            ("machine.description", TEXT, "the description on the machine card"),
            ("machine.device", TEXT, "cpu or cuda"),
            ("machine.engine", TEXT, "gloo or nccl"),
            ("machine.threads_per_rank", NULLABLE, "threads per rank"),
            (
                "machine.composed_from",
                NULLABLE,
                "smallest size in bytes of collectives that are composed of rounds; null if none are",
            ),
            ("machine.allocator", TEXT, "allocator settings of the machine card, as JSON"),
            ("seed", NULLABLE, "seed of weights, masks and samples"),
            ("launch", NULLABLE, "number of the launch among launches of otherwise equal specs"),
            ("spec", TEXT, "the full spec as canonical JSON, as `harness run --spec` takes it"),
        ),
        *_make_columns(
            "summary",
            Column("graph.vertices", NULLABLE, "vertices of the graph", title="vertices", unit="count"),
            Column(
                "graph.nonzeros",
                NULLABLE,
                "nonzeros of A, including self-loops",
                title="nonzeros",
                unit="count",
            ),
            Column("graph.features", NULLABLE, "width of the input features", title="features", unit="whole"),
            Column("graph.classes", NULLABLE, "number of classes", title="classes", unit="whole"),
            Column(
                "graph.trained",
                NULLABLE,
                "training vertices, over which the loss is averaged",
                title="training vertices",
                unit="count",
            ),
            Column(
                "steps",
                NULLABLE,
                "training steps per epoch: the mini-batches of a data-parallel group, or 1",
                title="steps per epoch",
                unit="whole",
            ),
            Column(
                "setup_seconds",
                REAL,
                "time from the start of rank 0 to its first epoch: opening the graph, and compiling kernels (unless "
                "they are compiled in warm-up epochs); no other time includes it",
                title="setup",
                unit="s",
                better="less",
            ),
            ("epochs", NULLABLE, "timed epochs that ran"),
            Column(
                "epoch_seconds_median",
                REAL,
                "epoch time, as in all figures: median over timed epochs of the slowest rank's time; for another "
                "program, the mean or the median of its log",
                title="epoch time",
                unit="s",
                better="less",
            ),
            Column(
                "epoch_seconds_paper",
                REAL,
                "epoch time by the protocol of the papers: mean over epochs 2 to 9 of the slowest rank's time",
                title="paper’s mean",
                unit="s",
                better="less",
            ),
            Column(
                "phase_seconds_mean",
                REAL,
                "sum of the named phases, mean over ranks, median over epochs, which Plexus reports as its epoch time",
                title="sum of phases",
                unit="s",
                better="less",
            ),
            Column(
                "computing_share",
                REAL,
                "share of all ranks' time in ops that compute: spmm, gemm, elementwise, copy",
                title="computing",
                unit="%",
            ),
            Column(
                "communicating_share",
                REAL,
                "share of all ranks' time in ops that send, receive, or wait for either",
                title="communicating",
                unit="%",
            ),
            (
                "device_percent",
                REAL,
                "utilisation of the GPUs, mean over ranks and windows; null without reports",
            ),
            Column(
                "vertices_per_second",
                REAL,
                "throughput of all ranks together: vertices of the graph divided by the epoch time",
                title="vertices per second",
                unit="count",
                better="more",
            ),
            Column(
                "training_vertices_per_second",
                REAL,
                "throughput in training vertices: graph.trained divided by the epoch time",
                title="training vertices per second",
                unit="count",
                better="more",
            ),
            Column(
                "final_loss",
                REAL,
                "loss of the last epoch; null if it was not finite",
                title="final loss",
                unit="number",
                better="less",
            ),
            Column(
                "accuracy_train",
                REAL,
                "last accuracy on labelled training vertices; null if there are none",
                title="train accuracy",
                unit="%",
                better="more",
            ),
            Column(
                "accuracy_valid",
                REAL,
                "last accuracy on labelled validation vertices",
                title="valid accuracy",
                unit="%",
                better="more",
            ),
            Column(
                "accuracy_test",
                REAL,
                "last accuracy on labelled test vertices",
                title="test accuracy",
                unit="%",
                better="more",
            ),
            (
                "accuracy_by",
                TEXT,
                "metric of OGB's Evaluator that the accuracies are: ogb acc or ogb rocauc; empty for the harness's own",
            ),
            Column(
                "seconds_to_target",
                REAL,
                "training time until an evaluation first reached training.target on test vertices; null if none did",
                title="time to target accuracy",
                unit="s",
                better="less",
            ),
            Column(
                "evaluation_seconds",
                REAL,
                "median time of an evaluation of the full graph",
                title="time of an evaluation",
                unit="s",
                better="less",
            ),
            Column(
                "messages",
                NULLABLE,
                "collectives and messages per epoch, on the rank with the most",
                title="messages per epoch",
                unit="count",
                better="less",
            ),
        ),
        Column(
            "elements_received",
            REAL,
            "elements received per epoch, on the rank with the most",
            "summary",
            earlier="words_received",
            title="elements received",
            unit="count",
            better="less",
        ),
        Column(
            "bytes_received",
            REAL,
            "bytes of the received elements in the types in which they are sent, per epoch, on the rank with the most",
            "summary",
            counted=True,
            title="bytes received",
            unit="B",
            better="less",
        ),
        Column(
            "elements_bound",
            REAL,
            "lower bound on elements_received for all strategies of this kind (lower-bounds.md); 0 if none is known",
            "summary",
            earlier="words_floor",
            title="lower bound of elements received",
            unit="count",
        ),
        Column(
            "elements_payload",
            REAL,
            "elements per epoch of the full logical buffers (ledger.md), on the rank with the most",
            "summary",
            earlier="words_payload",
            title="payload",
            unit="count",
            better="less",
        ),
        Column(
            "elements_payload_formula",
            REAL,
            "elements_payload by the strategy's formula; null unless requested",
            "summary",
            earlier="words_formula",
            title="payload by the formula",
            unit="count",
        ),
        *_make_columns(
            "summary",
            Column(
                "cache_hit_rate",
                REAL,
                "hit rate of the feature cache for rows of other ranks; null if no such rows were needed",
                title="cache hits",
                unit="%",
                better="more",
            ),
            (
                "chosen",
                TEXT,
                "choices that rank 0 made by measuring or where the spec left them open, as JSON",
            ),
        ),
        *_make_columns(
            "provenance",
            ("provenance.commit", TEXT, "commit of the checkout; empty if unknown"),
            (
                "provenance.dirty",
                TRUTH,
                "whether Python files outside of tests and documentation differed from the commit or were new",
            ),
            ("provenance.command", TEXT, "the command line that launched the run"),
            ("provenance.versions", TEXT, "versions of Python and of packages, as JSON"),
            ("provenance.host", TEXT, "host name of the machine"),
            (
                "provenance.nodes",
                TEXT,
                "node names of all ranks, in rank order; empty if unknown",
            ),
            (
                "provenance.block",
                TEXT,
                "the allocation and launch in which competitors ran one after the other; empty without competitors",
            ),
            (
                "provenance.position",
                NULLABLE,
                "position of the run in its block, from 0; null without competitors",
            ),
            (
                "provenance.process",
                TEXT,
                "the process from which rank 0 was forked; runs of one process are one launch; empty if unknown",
            ),
            ("provenance.cpu", TEXT, "processor of the machine"),
            (
                "provenance.cores",
                NULLABLE,
                "cores that the ranks of a host could use, on the host with the most threads per core",
            ),
            ("provenance.ranks_on_host", NULLABLE, "ranks that shared those cores; null if unknown"),
            ("provenance.gpu", TEXT, "accelerator of the machine; empty if there is none"),
            ("provenance.threads", NULLABLE, "threads that torch used per rank"),
            (
                "provenance.scheduling",
                TEXT,
                "Linux scheduling policy of the ranks: batch with gloo, otherwise other",
            ),
            ("provenance.allocator", TEXT, "allocator settings in force, as JSON"),
            ("provenance.modules", TEXT, "loaded environment modules, as listed in LOADEDMODULES"),
            ("provenance.env", TEXT, "environment variables that affect speed, as JSON"),
            ("provenance.engine", TEXT, "communication engine: single, gloo or nccl"),
            (
                "provenance.network",
                TEXT,
                "network between machines according to the log of NCCL; empty if unknown",
            ),
            (
                "provenance.start",
                TEXT,
                "seconds of each stage of the start, each on its slowest rank, as JSON",
            ),
            ("provenance.store_manifest", TEXT, "hash of the store's manifest"),
            (
                "provenance.graph_hash",
                TEXT,
                "hash of the graph's card and source files, whatever the order of its vertices; empty if unknown",
            ),
            ("provenance.strategy_code", TEXT, "hash of the strategy's Python files; empty if unknown"),
            ("provenance.started", TIME, "start of the run"),
            ("provenance.finished", TIME, "end of the run"),
            (
                "provenance.load_average",
                REAL,
                "load average of the machine over one minute, at the end of the run",
            ),
        ),
        Column(
            "contradiction",
            TEXT,
            "what in the record and its tables contradicts another part of them; empty if nothing does",
            "record",
            counted=True,
        ),
        Column(
            "extra", TEXT, "values of the record without a column, as JSON; empty if there are none", "record"
        ),
    ),
)

FAILURES = TableSchema(
    "failures",
    "one run that is not ok",
    (
        RUN_ID._replace(part=""),
        Column("status", TEXT, "oom, timeout, diverged, failed, refused or missing, as in the table runs"),
        Column("error", TEXT, "class of the error; empty if there is none", place="error.type"),
        Column("message", TEXT, "message of the error", place="error.message"),
        Column(
            "rank_id",
            NULLABLE,
            "number of the rank that failed first; -1 if unknown, null if there is no error",
            place="error.rank",
        ),
        Column(
            "began_in",
            TEXT,
            "file, line and package in which the error began, of the strategy if a call of it failed; empty if the "
            "traceback does not show it",
            inputs=("traceback",),
            compute=find_error_origin,
        ),
        Column("traceback", TEXT, "traceback of the error", place="error.trace"),
    ),
)

TABLES = {
    table.name: table
    for table in (
        RUNS,
        FAILURES,
        *(
            table._replace(columns=(RUN_ID._replace(part=""), *table.columns), number=SCHEMA)
            for table in RUN_TABLES.values()
        ),
    )
}
"""The collected tables."""


def find_quantity(name: str) -> Column:
    """Return the column of a quantity of a run, with its title, its unit, and which way is better."""
    return next(column for column in RUNS.columns if column.name == name and column.unit)


CLAIMS = TableSchema(
    "claims",
    "one claim of a paper with our value; `harness claims --out` writes the table",
    _make_columns(
        "",
        ("id", TEXT, "id of the claim, a row of workflows/claims/PAPER.csv"),
        ("paper", TEXT, "the paper that makes it"),
        ("role", TEXT, "setting (what the paper ran), fact (about data, machines or other work) or result"),
        ("figure", TEXT, "id of the figure or table that shows it; empty for the text of the paper"),
        ("place", TEXT, "section, figure or table"),
        ("what", TEXT, "the quantity, the system and the graph"),
        ("config", TEXT, "the setting"),
        ("printed", TEXT, "the value as the paper prints it"),
        (
            "read",
            TEXT,
            "how it was read: from the text, a table, the caption or a label of a figure, the end of an axis, or as a "
            "ratio of two values",
        ),
        (
            "marks",
            TEXT,
            "what figures of epoch times show of it, as JSON: the number, and the runs that it describes "
            "and compares; empty if nothing",
        ),
        ("ours", TEXT, "our value, with its interval; empty if the claim cannot be tested here"),
        ("basis", TEXT, "what our value is taken from"),
        ("source", TEXT, "how our value comes about: counted, computed, measured, predicted, or none"),
        (
            "duplicate_of",
            TEXT,
            "ids of the claims with the same number, or from whose numbers it is computed",
        ),
        ("uncounted", TEXT, "why the scoreboard does not count it; empty if it does"),
        ("formula", TEXT, "the function that computes our value, and its arguments"),
        ("ratio", REAL, "our value divided by the printed one; null for statements and ranges"),
        (
            "ratio_low",
            REAL,
            "the lower end of our interval divided by the printed value; the ratio if there is no interval",
        ),
        ("ratio_high", REAL, "the upper end of our interval divided by the printed value"),
        ("error", TEXT, "the class of the factor between a predicted number and the printed one"),
        (
            "verdict",
            TEXT,
            "holds, in part, within a factor, contradicted, predicted, prediction off, not comparable, fitted, or "
            "cannot be tested here",
        ),
        ("words", TEXT, "the verdict with its numbers, such as off by 4.5 or 1 of 2 hold"),
        ("heading", TEXT, "why it does not hold or is not comparable; empty if it holds or is not tested"),
        ("unprinted", TEXT, "the unit or the settings that the paper does not print"),
        ("reason", TEXT, "why it cannot be tested, or an explanation of the verdict"),
    ),
)
"""The table of claims, which `harness claims` writes; collecting does not."""
