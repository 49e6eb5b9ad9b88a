# Graphs: from the card of a dataset to its files, and to its store in the order or the partition of a run.


# A local rule: compute nodes often have no network. Generated and imported graphs need no files.
rule fetch_dataset:
    input:
        lambda wildcards: find_card(wildcards.dataset),
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


# Several jobs build one large graph: all jobs of a step, then all of the next. `build_dataset` finishes the store.
rule build_share:
    input:
        lambda wildcards: build_of(wildcards).partition_files,
        rules.fetch_dataset.output,
        before=lambda wildcards: build_of(wildcards).list_markers_before(wildcards.step, int(wildcards.jobs)),
        card=lambda wildcards: find_card(wildcards.dataset),
    output:
        touch(f"{STORES}/.shares/{ORDER}/{{step}}-{{number}}-of-{{jobs}}"),
    log:
        f"results/logs/data/{ORDER}/{{step}}-{{number}}-of-{{jobs}}.log",
    benchmark:
        f"results/benchmarks/data/{ORDER}/{{step}}-{{number}}-of-{{jobs}}.tsv"
    envmodules:
        *CONFIG.modules,
    resources:
        **build_resources(),
        machine_percent=25,
    params:
        order=lambda wildcards: build_of(wildcards).options,
    message:
        "Building {wildcards.dataset}, {params.order}: {wildcards.step}, job {wildcards.number} of {wildcards.jobs}"
    shell:
        f"{APPENDING}harness data build {{wildcards.dataset:q}} {{params.order}} --share {{wildcards.step:q}}:{{wildcards.number:q}}/{{wildcards.jobs:q}} >> {{log:q}} 2>&1"


rule build_dataset:
    input:
        lambda wildcards: build_of(wildcards).partition_files,
        rules.fetch_dataset.output,
        lambda wildcards: build_of(wildcards).list_last_markers(count_build_jobs(wildcards)),
        card=lambda wildcards: find_card(wildcards.dataset),
    output:
        touch(f"{STORES}/.built/{ORDER}"),
    log:
        f"results/logs/data/{ORDER}.log",
    benchmark:
        f"results/benchmarks/data/{ORDER}.tsv"
    envmodules:
        *CONFIG.modules,
    resources:
        **build_resources(),
        machine_percent=25,  # not during a timed run, which it would slow down
    params:
        order=lambda wildcards: build_of(wildcards).options,
    message:
        "Building {wildcards.dataset}, {params.order}"
    shell:
        f"{APPENDING}harness data build {{wildcards.dataset:q}} {{params.order}} >> {{log:q}} 2>&1"
