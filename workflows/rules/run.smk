# Runs: each has one spec, one launch and one record. The runs of a batch share a job and run one after the other.
#
# The output is a marker, not the folder of the run: Snakemake deletes the outputs of failed jobs, and a record may be
# hours of work on a cluster. `harness run` skips runs that have a record.
# Stores of small graphs that are generated are built by the job that needs them, in less time than a job takes to start.
# Do not edit the shell lines without need: Snakemake may take an edited line as a reason to run again.


rule run:
    input:
        specs=lambda wildcards: batch_of(wildcards).spec_files,
        datasets=lambda wildcards: batch_of(wildcards).graph_markers,
    output:
        touch("results/done/{batch}"),
    log:
        "results/logs/run/{batch}.log",
    benchmark:
        "results/benchmarks/run/{batch}.tsv"
    envmodules:
        *CONFIG.modules,
    resources:
        **run_resources(),
        machine_percent=100,  # timed: runs alone where the profile sets a limit
    params:
        label=lambda wildcards: batch_of(wildcards).label,
    message:
        "Running {params.label}"
    shell:
        f"{APPENDING}harness run --spec {{input.specs:q}} --job results/batches/{{wildcards.batch:q}}.json --build --out results/runs >> {{log:q}} 2>&1"
