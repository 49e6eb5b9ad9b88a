# Graphs: from a dataset's card to its files, and to its store in the order or the partition that a run asks for.


# Where there is a network, which compute nodes often lack. Nothing is fetched for a graph that is drawn or brought.
rule fetch_dataset:
    input:
        card,
    output:
        touch(f"{STORES}/.fetched/{{dataset}}"),
    log:
        "results/logs/data/fetch-{dataset}.log",
    message:
        "Fetching what {wildcards.dataset} needs"
    shell:
        "harness data fetch {wildcards.dataset} > {log} 2>&1"


# What one machine cannot do in time: all jobs of a step, then all of the next; `build_dataset` ends what they began.
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
    resources:
        **JOBS.place(),
        **JOBS.build(),
        device=1,
    params:
        order=order_options,
    message:
        "Building {wildcards.dataset}, {params.order}: {wildcards.step}, job {wildcards.number} of {wildcards.jobs}"
    shell:
        "harness data build {wildcards.dataset} {params.order} --share {wildcards.step}:{wildcards.number}/{wildcards.jobs} > {log} 2>&1"


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
    resources:
        **JOBS.place(),
        **JOBS.build(),
        device=1,  # a build beside a timed run would slow it
    params:
        order=order_options,
    message:
        "Building {wildcards.dataset}, {params.order}"
    shell:
        "harness data build {wildcards.dataset} {params.order} > {log} 2>&1"
