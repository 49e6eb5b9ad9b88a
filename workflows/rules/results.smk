# Results: tables from records, a report and figures from tables. These rules run no strategy.


rule collect:
    input:
        plan=lambda wildcards: STUDIES.plan(CONFIG.experiment).plan,
        runs=lambda wildcards: STUDIES.plan(CONFIG.experiment).markers,
    output:
        expand("results/{table}.parquet", table=TABLES),
    log:
        "results/logs/collect.log",
    benchmark:
        "results/benchmarks/collect.tsv"
    resources:
        machine_percent=25,
    message:
        "Collecting the records into tables"
    shell:
        "harness collect --runs results/runs --out results --plan {input.plan:q} > {log:q} 2>&1"


# Not part of `all`: a failed run is a result, and an error only for `verify`. Unchanged tables keep their dates, so
# `verify` does not trigger other rules.
rule verify:
    input:
        plan=lambda wildcards: STUDIES.plan(CONFIG.experiment).plan,
        tables=rules.collect.output,
    log:
        "results/logs/verify.log",
    benchmark:
        "results/benchmarks/verify.tsv"
    resources:
        machine_percent=25,
    message:
        "Checking for failed runs"
    shell:
        "harness collect --runs results/runs --out results --plan {input.plan:q} --verify > {log:q} 2>&1"


# The report and the figures. In all formats, each figure of all datasets has one for each dataset next to it. Figures without
# data are skipped, so their output is a folder, which Snakemake empties first.
rule report:
    input:
        rules.collect.output,
    output:
        page=report("results/report.html", caption="../report/report.rst", category="Report"),
        figures=report(
            directory(DRAWN),
            patterns=["{figure}.svg"],
            caption="../report/figures.rst",
            category="Figures",
            labels={"figure": "{figure}"},
        ),
    log:
        "results/logs/report.log",
    benchmark:
        "results/benchmarks/report.tsv"
    resources:
        machine_percent=25,
    params:
        # A function of the output: Snakemake calls it again when it writes its report, after the figures were drawn.
        captions=lambda wildcards, output: read_captions(output.figures),
        pictures=CONFIG.pictures,
    message:
        "Writing the report and drawing the figures"
    shell:
        "harness report --tables results --out {output.page:q} --figures {output.figures:q} --pictures {params.pictures:q}"
        " > {log:q} 2>&1"
