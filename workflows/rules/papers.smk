# The figures of the papers: `snakemake plexus_fig8`, `paper_plexus`, `papers`, at the scale that --config scale= names.
#
# Each experiment has a folder of tables, verdicts on claims, figures and a report; a changed record makes that of its own
# experiments anew and no other.


# The runs of which the paper prints a value, as records beside ours. Tiny graphs have nothing to set beside them.
rule printed_values:
    input:
        "workflows/claims",
    output:
        directory(f"{PAPERS}/{{experiment}}/printed"),
    log:
        f"results/logs/papers/{config['scale']}-{{experiment}}-printed.log",
    benchmark:
        f"results/benchmarks/papers/{config['scale']}-{{experiment}}-printed.tsv"
    localrule: True
    resources:
        machine_percent=25,
    params:
        shown=lambda wildcards: REPRODUCED[wildcards.experiment],
    message:
        "Reading what the paper prints for {wildcards.experiment}"
    shell:
        "harness claims --figure {params.shown:q} --records {output:q} > {log:q} 2>&1"


# The paper's own runs, predicted for the machines of the paper: what one machine cannot run stands beside what it ran.
rule predicted_runs:
    input:
        experiment=lambda wildcards: experiment_file(wildcards.experiment),
        machines="config/machines",
    output:
        directory(f"{PAPERS}/{{experiment}}/predicted"),
    log:
        f"results/logs/papers/{config['scale']}-{{experiment}}-predicted.log",
    benchmark:
        f"results/benchmarks/papers/{config['scale']}-{{experiment}}-predicted.tsv"
    localrule: True
    resources:
        machine_percent=25,
    message:
        "Predicting the paper's runs of {wildcards.experiment}"
    shell:
        "harness predict --experiment {input.experiment:q} --out {output:q} > {log:q} 2>&1"


# Runs of more ranks than there are cores: their kernels as measured, their calls on the links of their machine's card. What
# was predicted for the same runs stands beside them.
rule emulated_runs:
    input:
        experiment=lambda wildcards: experiment_file(wildcards.experiment),
        plan=lambda wildcards: study(experiment_file(wildcards.experiment), "emulated").plan,
        runs=lambda wildcards: markers_of(experiment_file(wildcards.experiment), "emulated"),
    output:
        directory(f"{PAPERS}/{{experiment}}/emulated"),
    log:
        f"results/logs/papers/{config['scale']}-{{experiment}}-emulated.log",
    benchmark:
        f"results/benchmarks/papers/{config['scale']}-{{experiment}}-emulated.tsv"
    localrule: True
    resources:
        machine_percent=25,
    message:
        "Emulating the runs of {wildcards.experiment} that have many ranks"
    shell:
        "(harness emulate --plan {input.plan:q} --out {output:q}"
        " && harness predict --experiment {input.experiment:q} --scale emulated --out {output:q}) > {log:q} 2>&1"


rule paper_report:
    input:
        plan=lambda wildcards: study(experiment_file(wildcards.experiment)).plan,
        runs=lambda wildcards: markers_of(experiment_file(wildcards.experiment)),
        printed=[] if config["scale"] == "tiny" else rules.printed_values.output,
        predicted=rules.predicted_runs.output if config["scale"] == "laptop" else [],
        emulated=emulations,
    output:
        expand("{folder}/{{experiment}}/{table}.parquet", folder=PAPERS, table=[*TABLES, "claims"]),
        report=f"{PAPERS}/{{experiment}}/report.html",
        figures=directory(f"{PAPERS}/{{experiment}}/figures"),
    log:
        f"results/logs/papers/{config['scale']}-{{experiment}}.log",
    benchmark:
        f"results/benchmarks/papers/{config['scale']}-{{experiment}}.tsv"
    localrule: True
    resources:
        machine_percent=25,
    params:
        folder=subpath(output.report, parent=True),
        shown=lambda wildcards: REPRODUCED[wildcards.experiment],
        beside=lambda wildcards, input: given("--beside", [*input.printed, *input.predicted, *input.emulated]),
        predictions=lambda wildcards, input: given("--predictions", input.predicted),
        quick="--quick" if config["scale"] == "tiny" else "",
    message:
        "Collecting, judging and drawing {wildcards.experiment}"
    shell:
        "(harness collect --runs results/runs --out {params.folder:q} --plan {input.plan:q} {params.beside}"
        " && harness claims --figure {params.shown:q} {params.quick} {params.predictions} --tables {params.folder:q} --out {params.folder:q}/claims.parquet"
        " && harness figures --tables {params.folder:q} --out {output.figures:q}"
        " && harness report --tables {params.folder:q} --figures {output.figures:q} --out {output.report:q}) > {log:q} 2>&1"


for target in TARGETS:

    rule:
        name:
            target
        input:
            lambda wildcards, target=target: reports_of(target),
        localrule: True
