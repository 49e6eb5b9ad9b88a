# Graphs: a dataset's card leads to its files, and to its store in the order or the partition of a run.


# A local rule: compute nodes often have no network. A graph that is drawn or imported needs no file.
rule fetch_dataset:
    input:
        card,
    output:
        touch(f"{STORES}/.fetched/{{dataset}}"),
    log:
        "results/logs/data/fetch-{dataset}.log",
    benchmark:
        "results/benchmarks/data/fetch-{dataset}.tsv"
    resources:
        machine_percent=25,
    message:
        "Fetching the files of {wildcards.dataset}"
    shell:
        "harness data fetch {wildcards.dataset:q} > {log:q} 2>&1"


# Several jobs build one large graph: all jobs of a step, then all of the next; `build_dataset` does the rest.
rule build_share:
    input:
        brought_partition,
        rules.fetch_dataset.output,
        before=shares_before,
        card=card,
    output:
        touch(f"{STORES}/.shares/{ORDERED}/{{step}}-{{number}}-of-{{jobs}}"),
    log:
        f"results/logs/data/{ORDERED}/{{step}}-{{number}}-of-{{jobs}}.log",
    benchmark:
        f"results/benchmarks/data/{ORDERED}/{{step}}-{{number}}-of-{{jobs}}.tsv"
    envmodules:
        *config["modules"],
    resources:
        **asked_by_builds(),
        machine_percent=25,
    params:
        order=order_options,
    message:
        "Building {wildcards.dataset}, {params.order}: {wildcards.step}, job {wildcards.number} of {wildcards.jobs}"
    shell:
        f"{APPENDING}harness data build {{wildcards.dataset:q}} {{params.order}} --share {{wildcards.step:q}}:{{wildcards.number:q}}/{{wildcards.jobs:q}} >> {{log:q}} 2>&1"


rule build_dataset:
    input:
        brought_partition,
        rules.fetch_dataset.output,
        last_shares,
        card=card,
    output:
        touch(f"{STORES}/.built/{ORDERED}"),
    log:
        f"results/logs/data/{ORDERED}.log",
    benchmark:
        f"results/benchmarks/data/{ORDERED}.tsv"
    envmodules:
        *config["modules"],
    resources:
        **asked_by_builds(),
        machine_percent=25,  # never beside a timed run, which it would slow
    params:
        order=order_options,
    message:
        "Building {wildcards.dataset}, {params.order}"
    shell:
        f"{APPENDING}harness data build {{wildcards.dataset:q}} {{params.order}} >> {{log:q}} 2>&1"
