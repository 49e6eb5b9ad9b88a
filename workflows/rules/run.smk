# Runs: one spec, one launch, one record. The runs of a batch share a job, one after the other.
#
# The output is a marker, not the run's folder: Snakemake deletes the outputs of a failed job, and must not delete a
# record of hours on a cluster. `harness run` skips a run that has its record.
# The shell lines are short and stay as they are: Snakemake may take an edited line as a reason to run again.


rule run:
    input:
        specs=spec_files,
        datasets=dataset_markers,
    output:
        touch("results/done/{batch}"),
    log:
        "results/logs/run/{batch}.log",
    benchmark:
        "results/benchmarks/run/{batch}.tsv"
    envmodules:
        *config["modules"],
    resources:
        **asked_by_runs(),
        machine_percent=100,  # timed: alone, where the profile limits it
    params:
        label=label,
    message:
        "Running {params.label}"
    shell:
        f"{APPENDING}harness run --spec {{input.specs:q}} --job results/batches/{{wildcards.batch:q}}.json --out results/runs >> {{log:q}} 2>&1"
