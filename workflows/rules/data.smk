# Graphs: from a dataset's card to its store.


rule build_dataset:
    input:
        "datasets/catalog/{dataset}.yaml",
    output:
        touch(f"{STORES}/.built/{{dataset}}-{{permutation}}-s{{seed}}"),
    log:
        "results/logs/data/{dataset}-{permutation}-s{seed}.log",
    resources:
        device=1,  # a build beside a timed run would slow it
    message:
        "Building {wildcards.dataset}, permutation {wildcards.permutation}, seed {wildcards.seed}"
    shell:
        "harness data build {wildcards.dataset} --permutation {wildcards.permutation} --seed {wildcards.seed} > {log} 2>&1"
