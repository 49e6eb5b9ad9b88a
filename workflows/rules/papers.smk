# The figures of the papers: `snakemake plexus_fig8`, `paper_plexus` or `papers`, at the scale of `--config scale=`.
#
# Each experiment has a folder with tables, verdicts on claims, figures and a report. A changed record updates only the
# folders of its experiments.


# The values that papers print, and the predictions of the papers' runs for the papers' machines, as records to draw next
# to our runs. `harness claims --save` made the predictions.
rule paper_records:
    input:
        "workflows/claims",
        "workflows/predictions",
        "config/machines",
    output:
        directory("results/papers/records"),
    log:
        "results/logs/papers/records.log",
    benchmark:
        "results/benchmarks/papers/records.tsv"
    localrule: True
    resources:
        machine_percent=25,
    message:
        "Recording the printed values and the predictions of the papers"
    shell:
        "harness claims --predictions workflows/predictions --records {output:q} > {log:q} 2>&1"


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
        records=rules.paper_records.output,
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
            "--extra", [f"{input.records}/{wildcards.experiment}", *input.emulated]
        ),
        pictures=CONFIG.pictures,
    message:
        "Collecting, judging and drawing {wildcards.experiment}"
    shell:
        "(harness collect --runs results/runs --out {params.folder:q} --plan {input.plan:q} {params.extra}"
        " && harness claims --figure {params.shown:q} --quick --predictions workflows/predictions --tables {params.folder:q} --out {params.folder:q}/claims.parquet"
        " && harness report --tables {params.folder:q} --out {output.report:q} --figures {output.figures:q} --pictures {params.pictures:q}) > {log:q} 2>&1"


for target in TARGETS.figures:

    rule:
        name:
            target
        input:
            lambda wildcards, target=target: TARGETS.list_reports(target),
        localrule: True
