# The figures of the papers: `snakemake plexus_fig8`, `paper_plexus` or `papers`, at the scale of `--config scale=`.
#
# Each experiment has a folder with tables, verdicts on claims, figures and a report. A changed record updates only the
# folders of its experiments.


# The values that the paper prints, as records to compare with ours. Tiny graphs have no printed values.
rule printed_values:
    input:
        "workflows/claims",
    output:
        directory(f"{TARGETS.folder}/{{experiment}}/printed"),
    log:
        f"results/logs/papers/{CONFIG.scale}-{{experiment}}-printed.log",
    benchmark:
        f"results/benchmarks/papers/{CONFIG.scale}-{{experiment}}-printed.tsv"
    localrule: True
    resources:
        machine_percent=25,
    params:
        shown=lambda wildcards: TARGETS.reproduced[wildcards.experiment],
    message:
        "Reading the printed values of {wildcards.experiment}"
    shell:
        "harness claims --figure {params.shown:q} --records {output:q} > {log:q} 2>&1"


# The runs of the paper, predicted for its machines, to show what this machine cannot run next to what it ran.
rule predicted_runs:
    input:
        experiment=lambda wildcards: experiment_file(wildcards.experiment),
        machines="config/machines",
    output:
        directory(f"{TARGETS.folder}/{{experiment}}/predicted"),
    log:
        f"results/logs/papers/{CONFIG.scale}-{{experiment}}-predicted.log",
    benchmark:
        f"results/benchmarks/papers/{CONFIG.scale}-{{experiment}}-predicted.tsv"
    localrule: True
    resources:
        machine_percent=25,
    message:
        "Predicting the paper's runs of {wildcards.experiment}"
    shell:
        "harness predict --experiment {input.experiment:q} --out {output:q} > {log:q} 2>&1"


# Runs with more ranks than cores: kernels take their measured times, and collectives the times of the links on the
# machine card. The predictions for the same runs are shown next to them.
rule emulated_runs:
    input:
        experiment=lambda wildcards: experiment_file(wildcards.experiment),
        plan=lambda wildcards: STUDIES.plan(experiment_file(wildcards.experiment), "emulated").plan,
        runs=lambda wildcards: STUDIES.plan(experiment_file(wildcards.experiment), "emulated").markers,
    output:
        directory(f"{TARGETS.folder}/{{experiment}}/emulated"),
    log:
        f"results/logs/papers/{CONFIG.scale}-{{experiment}}-emulated.log",
    benchmark:
        f"results/benchmarks/papers/{CONFIG.scale}-{{experiment}}-emulated.tsv"
    localrule: True
    resources:
        machine_percent=25,
    message:
        "Emulating the runs of {wildcards.experiment} with many ranks"
    shell:
        "(harness runs emulate --plan {input.plan:q} --out {output:q}"
        " && harness predict --experiment {input.experiment:q} --scale emulated --out {output:q}) > {log:q} 2>&1"


rule paper_report:
    input:
        plan=lambda wildcards: STUDIES.plan(experiment_file(wildcards.experiment)).plan,
        runs=lambda wildcards: STUDIES.plan(experiment_file(wildcards.experiment)).markers,
        printed=[] if CONFIG.scale == "tiny" else rules.printed_values.output,
        predicted=rules.predicted_runs.output if CONFIG.scale == "laptop" else [],
        emulated=lambda wildcards: (
            rules.emulated_runs.output if TARGETS.has_emulated_runs(wildcards.experiment) else []
        ),
    output:
        expand("{folder}/{{experiment}}/{table}.parquet", folder=TARGETS.folder, table=[*TABLES, "claims"]),
        report=f"{TARGETS.folder}/{{experiment}}/report.html",
        figures=directory(f"{TARGETS.folder}/{{experiment}}/figures"),
    log:
        f"results/logs/papers/{CONFIG.scale}-{{experiment}}.log",
    benchmark:
        f"results/benchmarks/papers/{CONFIG.scale}-{{experiment}}.tsv"
    localrule: True
    resources:
        machine_percent=25,
    params:
        folder=subpath(output.report, parent=True),
        shown=lambda wildcards: TARGETS.reproduced[wildcards.experiment],
        extra=lambda wildcards, input: quote_option(
            "--extra", [*input.printed, *input.predicted, *input.emulated]
        ),
        predictions=lambda wildcards, input: quote_option("--predictions", input.predicted),
        quick="--quick" if CONFIG.scale == "tiny" else "",
    message:
        "Collecting, judging and drawing {wildcards.experiment}"
    shell:
        "(harness collect --runs results/runs --out {params.folder:q} --plan {input.plan:q} {params.extra}"
        " && harness claims --figure {params.shown:q} {params.quick} {params.predictions} --tables {params.folder:q} --out {params.folder:q}/claims.parquet"
        " && harness report --tables {params.folder:q} --out {output.report:q} --figures {output.figures:q}) > {log:q} 2>&1"


for target in TARGETS.figures:

    rule:
        name:
            target
        input:
            lambda wildcards, target=target: TARGETS.list_reports(target),
        localrule: True
