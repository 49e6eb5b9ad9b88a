"""The schema: every table of the project, its columns, their types and their meaning.

A run folder holds all tables except `runs`; collecting joins the tables of all runs, each with a first column `run_id`,
and adds `runs` with one row a run. Text is never null: an empty text means none. A number that does not apply is null,
except in a ledger's key, where -1 means no layer or no peer. Columns of `runs` that come from the spec have the dotted
names of `--set` and of experiments (`model.hidden`). The page docs/tables.md is made from this module
(docs/write_tables.py).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from harness.ledger import AxisName
from harness.results.error_origin import find_error_origin

SCHEMA = 1
"""The number of this schema. A change of the name, type or meaning of a column raises the number; tables and records of
another number are refused."""

MISSING = "missing"
SOURCES = ("measured", "external", "emulated", "predicted", "published")
OK, DIVERGED, FAILED = "ok", "diverged", "failed"
STATUSES = (OK, "oom", "timeout", DIVERGED, FAILED, "refused")
SETTLED = (OK, "oom", "timeout", DIVERGED)
"""Statuses of runs that are not repeated. Training is deterministic, so a diverged run would diverge again; a refused
or failed run may succeed later."""
WARMUP_DROPPED, PAPER_EPOCHS = 2, 10

INTEGER, NULLABLE, REAL, TEXT, TRUTH = "int64", "Int64", "float64", "str", "boolean"


class Column(NamedTuple):
    """One column; `part` is the part of a record that its values come from, in tables that have parts."""

    name: str
    dtype: str
    meaning: str
    part: str = ""
    inputs: tuple[str, ...] = ()
    """The columns of the same row from which `compute` computes the value, which is null if one of them is null."""
    compute: Callable[..., Any] | None = None
    """None if records hold the value."""


class TableSchema(NamedTuple):
    """One table: the meaning of a row, and the columns."""

    name: str
    row: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]


def _part(part: str, *columns: tuple[str, str, str]) -> tuple[Column, ...]:
    return tuple(Column(*column, part) for column in columns)


EPOCH_AND_RANK = _part(
    "",
    ("epoch", INTEGER, "number of the epoch; timed ones count from 0, warm-up epochs are negative"),
    ("rank", INTEGER, "the rank that measured it"),
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
"""The columns of a key of the ledger."""

EPOCHS = TableSchema(
    "epochs",
    "one epoch on one rank",
    EPOCH_AND_RANK
    + _part(
        "",
        ("seconds", REAL, "wall time of the epoch on this rank; the epoch's time is the slowest rank's"),
        (
            "loss",
            REAL,
            "training loss of the epoch, the same on every rank; not finite in the last of a run that diverged",
        ),
    ),
)

LEDGER = TableSchema(
    "ledger",
    "the work of one rank under one key in one epoch; docs/ledger.md has the rules of counting",
    EPOCH_AND_RANK
    + _part(
        "",
        ("layer", INTEGER, "layer of the model from 0; -1 outside any layer"),
        ("direction", TEXT, "forward or backward"),
        ("phase", TEXT, "the place in the algorithm"),
        ("op", TEXT, "the operation that ran; glue is time in a phase outside any op"),
        ("axis", TEXT, "axis of the grid that it ran over; empty for local work"),
        ("peer", INTEGER, "the other rank of a send or recv; -1 for everything else"),
        ("tensor", TEXT, "the tensor that it moved or made; empty for none"),
        ("calls", INTEGER, "number of calls"),
        ("words_payload", REAL, "elements of the full logical buffers"),
        ("words_received", REAL, "elements that a ring brings to this rank"),
        ("bytes", INTEGER, "bytes handed to the library, padding and wire type included"),
        ("seconds", REAL, "time under this key alone; the rows of an epoch add up to the epoch"),
        (
            "in_flight_seconds",
            REAL,
            "time an asynchronous collective was under way; never summed with seconds",
        ),
        ("flops", INTEGER, "floating point operations, in a replay"),
        ("bytes_touched", INTEGER, "bytes read and written, in a replay"),
    ),
)

ACCURACY = TableSchema(
    "accuracy",
    "one split of the vertices at one evaluation of the full graph",
    _part(
        "",
        ("epoch", INTEGER, "the epoch after which it was evaluated"),
        (
            "train_seconds",
            REAL,
            "training time until the evaluation, warm-up included, evaluations and setup_seconds excluded",
        ),
        ("eval_seconds", REAL, "time of the evaluation"),
        ("split", TEXT, "train, valid or test"),
        (
            "accuracy",
            REAL,
            "share of labelled vertices predicted right, or micro F1 if multi-label; null without labelled vertices",
        ),
    ),
)

MEMORY = TableSchema(
    "memory",
    "one persistent tensor of one rank, or (tensor empty) the peaks of the rank",
    _part(
        "",
        ("rank", INTEGER, "the rank"),
        ("host_peak_bytes", INTEGER, "largest resident size of the process; 0 in the rows of tensors"),
        (
            "device_peak_bytes",
            INTEGER,
            "largest allocation on the device; 0 without a device, and in the rows of tensors",
        ),
        ("persistent_bytes", INTEGER, "bytes that this tensor holds between epochs; 0 in the row of peaks"),
        ("tensor", TEXT, "name of the tensor; empty in the row of peaks"),
    ),
)

UTILISATION = TableSchema(
    "utilisation",
    "one window of an epoch on one rank, if the spec asks for it (measure.utilisation_ms)",
    EPOCH_AND_RANK
    + _part(
        "",
        ("window", INTEGER, "number of the window, from 0 at the begin of the epoch"),
        ("seconds", REAL, "its length: measure.utilisation_ms, or less for the last window of an epoch"),
        ("computing_seconds", REAL, "seconds in ops that compute; the rest of the window is in neither kind"),
        ("communicating_seconds", REAL, "seconds in ops that send, receive, or wait for either"),
        (
            "device_percent",
            REAL,
            "utilisation of the GPU by the last report of its driver; null without reports",
        ),
    ),
)

TAPE = TableSchema(
    "tape",
    "one event on one rank of an epoch after the last one, in order, if the spec asks for it (measure.tape)",
    EPOCH_AND_RANK
    + _part(
        "",
        ("event", INTEGER, "number of the event on this rank, from 0"),
        *((name, dtype, "as in the table ledger") for name, dtype in KEY),
        ("calls", INTEGER, "number of calls"),
        ("words_payload", REAL, "elements of the full logical buffers"),
        ("words_received", REAL, "elements that a ring brings to this rank"),
        ("bytes", INTEGER, "bytes handed to the library, padding and wire type included"),
        ("cpu_seconds", REAL, "seconds that the processor spent on the event"),
        ("leaves", TRUTH, "whether the result of its call is waited for in a later event"),
        ("waits_for", INTEGER, "the event whose call this event waits for; -1 for none"),
        ("travels_with", INTEGER, "the event in whose call the words of this event travel; -1 for its own"),
    ),
)

RUN_TABLES = {table.name: table for table in (EPOCHS, LEDGER, ACCURACY, MEMORY, UTILISATION, TAPE)}

RUN_ID = Column("run_id", TEXT, "hash of the spec; names the run folder and joins the tables", "record")

RUNS = TableSchema(
    "runs",
    "one launch of one spec, or one number that was predicted or published for it",
    (
        RUN_ID,
        *_part(
            "record",
            ("label", TEXT, "the name for people"),
            (
                "origin",
                TEXT,
                "the folder of runs that had it, as `collect` was given it; empty if there was one folder",
            ),
            (
                "status",
                TEXT,
                "ok, oom, timeout, diverged (a number that is not finite), failed, refused, or missing (planned and "
                "not recorded)",
            ),
            (
                "source",
                TEXT,
                "measured, external (another program), emulated, predicted or published; empty when missing",
            ),
        ),
        *_part(
            "spec",
            ("strategy.name", TEXT, "the strategy"),
            ("strategy.params", TEXT, "its own parameters, as JSON"),
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
                "number of parts; 0 for block, which every strategy cuts itself",
            ),
            ("ranks", NULLABLE, "number of ranks"),
            ("grid", TEXT, "the grid in short, as x2y2z1"),
            *(
                (f"grid.{axis.value}", NULLABLE, f"size of axis {axis.value}; null without this axis")
                for axis in AxisName
            ),
            ("model.kind", TEXT, "the model"),
            ("model.layers", NULLABLE, "number of layers"),
            ("model.hidden", NULLABLE, "width of the hidden layers; for gat, of one head"),
            ("model.heads", NULLABLE, "heads of attention, if the model is gat"),
            ("model.order", TEXT, "the first step of a convolution: aggregate_first or combine_first"),
            ("model.projection", TRUTH, "whether features are first brought to the hidden width"),
            ("model.norm", TRUTH, "whether layers are normalised"),
            ("model.activation", TEXT, "relu or none"),
            ("model.dropout", REAL, "share of a layer's output that a training step drops"),
            ("model.residual", TRUTH, "whether the input of a layer is added to its output"),
            ("training.epochs", NULLABLE, "timed epochs of the spec"),
            ("training.warmup", NULLABLE, "warm-up epochs before the timed epochs"),
            ("training.optimizer", TEXT, "the optimizer"),
            ("training.lr", REAL, "learning rate of the optimizer"),
            ("training.weight_decay", REAL, "weight decay of the optimizer"),
            ("training.features", TRUTH, "whether the input features were trained as well"),
            ("training.evaluate_every", NULLABLE, "epochs between evaluations; 0 means once, at the end"),
            ("training.batch", NULLABLE, "vertices of a mini-batch; 0: the full graph"),
            ("training.target", REAL, "accuracy on test vertices at which training stops; 0: never"),
            ("training.recompute", TRUTH, "whether layers were computed once more in the backward pass"),
            ("training.cuda_graph", TRUTH, "whether timed epochs were replayed from a CUDA graph"),
            (
                "measure.utilisation_ms",
                NULLABLE,
                "milliseconds of a window of the table utilisation; 0: no windows",
            ),
            ("measure.tape", TRUTH, "whether another epoch was recorded event by event, after the last one"),
            ("protocol", TEXT, "corrected, or faithful to what a paper's code did"),
            ("precision", TEXT, "float32 or float64"),
            ("machine.name", TEXT, "the machine card"),
            ("machine.description", TEXT, "the description on the card"),
            ("machine.device", TEXT, "cpu or cuda"),
            ("machine.engine", TEXT, "gloo or nccl"),
            ("machine.threads_per_rank", NULLABLE, "threads of a rank"),
            (
                "machine.composed_from",
                NULLABLE,
                "collectives of at least so many bytes are composed out of rounds; null: none are",
            ),
            ("machine.allocator", TEXT, "allocator settings of the card, as JSON"),
            ("seed", NULLABLE, "seed of weights, masks and samples"),
            ("launch", NULLABLE, "number of this launch among launches of otherwise equal specs"),
            ("spec", TEXT, "the whole spec as canonical JSON; `harness run --spec` takes it"),
        ),
        *_part(
            "summary",
            ("graph.vertices", NULLABLE, "vertices of the graph"),
            ("graph.nonzeros", NULLABLE, "nonzeros of A, loops included"),
            ("graph.features", NULLABLE, "width of the input features"),
            ("graph.classes", NULLABLE, "classes"),
            ("graph.trained", NULLABLE, "vertices over which the loss is a mean"),
            ("steps", NULLABLE, "training steps an epoch: the mini-batches of a group, or 1"),
            (
                "setup_seconds",
                REAL,
                "from the start of rank 0 to its first epoch: opening the graph, and compiling kernels unless only "
                "warm-up epochs do; no other time includes it",
            ),
            ("epochs", NULLABLE, "timed epochs that were run"),
            (
                "epoch_seconds_median",
                REAL,
                "median over timed epochs of the slowest rank's time: the epoch time of every figure",
            ),
            (
                "epoch_seconds_paper",
                REAL,
                "mean over epochs 2 to 9 of the slowest rank's time: the papers' protocol",
            ),
            (
                "phase_seconds_mean",
                REAL,
                "named phases, mean over ranks, median over epochs: the sum Plexus reports",
            ),
            (
                "computing_share",
                REAL,
                "share of all ranks' time in ops that compute: spmm, gemm, elementwise, copy",
            ),
            (
                "communicating_share",
                REAL,
                "share of all ranks' time in ops that send, receive, or wait for either",
            ),
            (
                "device_percent",
                REAL,
                "utilisation of the GPUs, mean over ranks and windows; null without reports",
            ),
            (
                "vertices_per_second",
                REAL,
                "throughput: vertices of the graph over the epoch time, all ranks together",
            ),
            (
                "training_vertices_per_second",
                REAL,
                "throughput by the vertices over which the loss is a mean",
            ),
            ("final_loss", REAL, "loss of the last epoch; null if it was not a finite number"),
            ("accuracy_train", REAL, "last accuracy on labelled training vertices; null without any"),
            ("accuracy_valid", REAL, "last accuracy on labelled validation vertices"),
            ("accuracy_test", REAL, "last accuracy on labelled test vertices"),
            (
                "seconds_to_target",
                REAL,
                "training time until an evaluation first reached training.target on test vertices; null: never",
            ),
            ("evaluation_seconds", REAL, "median time of an evaluation of the full graph"),
            ("messages", NULLABLE, "collectives and messages an epoch, of the rank that has most"),
            ("words_payload", REAL, "payload words an epoch, of the rank that has most"),
            ("words_received", REAL, "received words an epoch, of the rank that has most"),
            (
                "words_formula",
                REAL,
                "payload words an epoch by the strategy's formula; null unless requested",
            ),
            (
                "words_floor",
                REAL,
                "a lower bound on words_received that holds for every strategy of this kind (lower-bounds.md); 0 where "
                "no bound is known",
            ),
            (
                "cache_hit_rate",
                REAL,
                "hit rate of the feature cache over rows of other ranks; null: no such rows were needed",
            ),
            ("chosen", TEXT, "the choices of rank 0, by measuring or as its spec allowed, as JSON"),
        ),
        *_part(
            "error",
            ("error.rank", NULLABLE, "the rank that failed first; -1 if unknown"),
            ("error.type", TEXT, "kind of the error; empty for none"),
            ("error.message", TEXT, "message of the error"),
            ("error.trace", TEXT, "trace of the error"),
        ),
        Column(
            "error.origin",
            TEXT,
            "file, line and package in which the error began; empty if the trace does not tell",
            "error",
            inputs=("error.trace",),
            compute=find_error_origin,
        ),
        *_part(
            "provenance",
            ("provenance.commit", TEXT, "commit of the checkout; empty if unknown"),
            (
                "provenance.dirty",
                TRUTH,
                "whether tracked files differed from the commit, or their folders held untracked files",
            ),
            ("provenance.command", TEXT, "the command line that launched the run"),
            ("provenance.versions", TEXT, "versions of Python and packages, as JSON"),
            ("provenance.host", TEXT, "name of the machine"),
            (
                "provenance.nodes",
                TEXT,
                "names of the nodes of all ranks, in the order of ranks; empty if unknown",
            ),
            (
                "provenance.block",
                TEXT,
                "allocation and launch that competitors shared, one after the other; empty for a run by itself",
            ),
            (
                "provenance.position",
                NULLABLE,
                "position of the run in its block, from 0; null for a run by itself",
            ),
            ("provenance.cpu", TEXT, "processor of the machine"),
            (
                "provenance.cores",
                NULLABLE,
                "cores that the ranks of a host might use, on the host with most threads a core",
            ),
            ("provenance.ranks_on_host", NULLABLE, "ranks that shared those cores; null if unknown"),
            ("provenance.gpu", TEXT, "accelerator of the machine; empty for none"),
            ("provenance.threads", NULLABLE, "threads that torch used in a rank"),
            (
                "provenance.scheduling",
                TEXT,
                "Linux's scheduling policy of a rank: batch with gloo, else other",
            ),
            ("provenance.allocator", TEXT, "allocator settings in force, as JSON"),
            ("provenance.modules", TEXT, "environment modules that were loaded, as LOADEDMODULES lists them"),
            ("provenance.env", TEXT, "environment variables that change the speed, as JSON"),
            ("provenance.engine", TEXT, "engine of the collectives: single, gloo or nccl"),
            ("provenance.network", TEXT, "network between machines by NCCL's own log; empty if unknown"),
            ("provenance.start", TEXT, "seconds of each stage of the start on its slowest rank, as JSON"),
            ("provenance.store_manifest", TEXT, "hash of the store's manifest"),
            ("provenance.started", REAL, "begin of the run, in seconds since 1970 (UTC)"),
            ("provenance.finished", REAL, "end of the run, in seconds since 1970 (UTC)"),
            ("provenance.load_average", REAL, "load of the machine over the last minute, at the end"),
        ),
        Column("extra", TEXT, "values of the record that have no column, as JSON; empty for none", "record"),
    ),
)

TABLES = {
    table.name: table
    for table in (
        RUNS,
        *(TableSchema(name, row, (RUN_ID, *columns)) for name, row, columns in RUN_TABLES.values()),
    )
}
"""The collected tables."""

CLAIMS = TableSchema(
    "claims",
    "one claim of a paper beside the value of this project; `harness claims --out` writes the table",
    _part(
        "",
        ("id", TEXT, "the claim, a row of workflows/claims/PAPER.csv"),
        ("paper", TEXT, "the paper that prints it"),
        ("figure", TEXT, "the figure or table that shows it, by its id; empty for the text"),
        ("place", TEXT, "section, figure or table"),
        ("what", TEXT, "the quantity, and of which system on which graph"),
        ("config", TEXT, "the setting"),
        ("printed", TEXT, "the value as the paper says it"),
        ("ours", TEXT, "our value, with its interval; empty if the claim cannot be tested here"),
        ("basis", TEXT, "what our value is taken from"),
        ("formula", TEXT, "the function that computes our value, and its arguments"),
        ("ratio", REAL, "our value over the printed one; null for statements"),
        (
            "ratio_low",
            REAL,
            "the lower end of our interval over the printed value; the ratio if it has no interval",
        ),
        ("ratio_high", REAL, "the upper end of our interval over the printed value"),
        ("verdict", TEXT, "holds, within a factor, contradicted, fitted, or cannot be tested here"),
        ("reason", TEXT, "why it cannot be tested, or what is behind the verdict"),
    ),
)
"""The table of claims. Collecting does not make it."""
