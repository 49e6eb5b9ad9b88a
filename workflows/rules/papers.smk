# The figures of the papers: `snakemake plexus_fig8`, `paper_plexus`, `papers`, at the scale that --config scale= names.
#
# Each experiment has a folder of tables, verdicts on claims, figures and a report; a changed record makes that of its own
# experiments anew and no other.


rule paper_report:
    input:
        plan=lambda wildcards: study(experiment_file(wildcards.experiment)).plan,
        runs=lambda wildcards: markers_of(experiment_file(wildcards.experiment)),
    output:
        expand("{folder}/{{experiment}}/{table}.parquet", folder=PAPERS, table=[*TABLES, "claims"]),
        report=f"{PAPERS}/{{experiment}}/report.html",
        figures=directory(f"{PAPERS}/{{experiment}}/figures"),
    log:
        f"results/logs/papers/{config['scale']}-{{experiment}}.log",
    localrule: True
    params:
        folder=subpath(output.report, parent=True),
        shown=lambda wildcards: REPRODUCED[wildcards.experiment],
        quick="--quick" if config["scale"] == "tiny" else "",
    message:
        "Collecting, judging and drawing {wildcards.experiment}"
    shell:
        "(harness collect --runs results/runs --out {params.folder} --plan {input.plan}"
        " && harness claims --figure {params.shown} {params.quick} --tables {params.folder} --out {params.folder}/claims.parquet"
        " && harness figures --tables {params.folder} --out {output.figures}"
        " && harness report --tables {params.folder} --figures {output.figures} --out {output.report}) > {log} 2>&1"


for target in TARGETS:

    rule:
        name:
            target
        input:
            lambda wildcards, target=target: reports_of(target),
        localrule: True
