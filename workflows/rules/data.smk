# Graphs: from a dataset's card to its store, in the order or the partition that a run asks for.


rule build_dataset:
    input:
        brought_partition,
        card="datasets/catalog/{dataset}.yaml",
    output:
        touch(f"{STORES}/.built/{ORDERED}"),
    log:
        f"results/logs/data/{ORDERED}.log",
    resources:
        device=1,  # a build beside a timed run would slow it
    params:
        order=order_options,
    message:
        "Building {wildcards.dataset}, {params.order}"
    shell:
        "harness data build {wildcards.dataset} {params.order} > {log} 2>&1"
