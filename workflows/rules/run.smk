# Runs: one spec, one launch, one record.
#
# The output is a marker, not the run's folder: Snakemake deletes the outputs of a failed job, and a record of
# hours on a cluster is not its to delete. `harness run` leaves a run that already has its record alone.
# The shell lines are short and stay as they are: Snakemake may take an edited line for a reason to run again.


rule spec:
    output:
        "results/specs/{run_id}.json",
    log:
        "results/logs/spec/{run_id}.log",
    params:
        spec=spec_text,
    message:
        "Writing the spec {wildcards.run_id}"
    shell:
        "printf '%s\\n' {params.spec:q} > {output} 2> {log}"


rule run:
    input:
        spec="results/specs/{run_id}.json",
        dataset=dataset_marker,
    output:
        touch("results/done/{run_id}"),
    log:
        "results/logs/run/{run_id}.log",
    resources:
        device=1,  # timed: one at a time where the profile grants one device
    params:
        label=label,
    message:
        "Running {params.label}"
    shell:
        "harness run --spec {input.spec} --out results/runs > {log} 2>&1"
