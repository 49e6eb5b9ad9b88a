# Results: tables from records, figures from tables, one page from both. No rule of this file runs a strategy.


rule collect:
    input:
        plan=lambda wildcards: study(config["experiment"]).plan,
        runs=lambda wildcards: markers_of(config["experiment"]),
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


# Not part of `all`: a failed run is a result, and an error only for `verify`. Tables with the same content keep their
# dates, so `verify` triggers no other rule.
rule verify:
    input:
        plan=lambda wildcards: study(config["experiment"]).plan,
        tables=rules.collect.output,
    log:
        "results/logs/verify.log",
    benchmark:
        "results/benchmarks/verify.tsv"
    resources:
        machine_percent=25,
    message:
        "Looking for failed runs"
    shell:
        "harness collect --runs results/runs --out results --plan {input.plan:q} --verify > {log:q} 2>&1"


# Each figure shows all datasets on one page; a figure of each dataset alone lies beside it. Kinds of figures with nothing
# to show are not drawn, so the output is a folder of the experiment's own, which Snakemake empties first.
rule figures:
    input:
        rules.collect.output,
    output:
        report(
            directory(DRAWN),
            patterns=["{figure}.svg"],
            caption="../report/figures.rst",
            category="Figures",
            labels={"figure": "{figure}"},
        ),
    log:
        "results/logs/figures.log",
    benchmark:
        "results/benchmarks/figures.tsv"
    resources:
        machine_percent=25,
    params:
        captions={kind: caption.read_text() for kind, caption in CAPTIONS.items()},
    message:
        "Drawing the figures"
    shell:
        "harness figures --tables results --out {output:q} > {log:q} 2>&1"


rule report:
    input:
        rules.collect.output,
        figures=rules.figures.output,
    output:
        report("results/report.html", caption="../report/report.rst", category="Report"),
    log:
        "results/logs/report.log",
    benchmark:
        "results/benchmarks/report.tsv"
    resources:
        machine_percent=25,
    message:
        "Writing the report"
    shell:
        "harness report --tables results --figures {input.figures:q} --out {output:q} > {log:q} 2>&1"
