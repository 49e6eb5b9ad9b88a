"""An emulated cluster on one machine, for measurements in which the network is the bottleneck. Needs root.

python benchmarks/testbed up --hosts 4 --rate 200mbit
python benchmarks/testbed run --ranks-per-host 1 -- python -m benchmarks collectives.links
python benchmarks/testbed experiment workflows/experiments/cagnet-figure-2.yaml
python benchmarks/testbed show
python benchmarks/testbed down
"""

import argparse
import os
import sys
from pathlib import Path

import cluster


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="testbed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="make the hosts and their links")
    up.add_argument("--hosts", type=int, default=4)
    up.add_argument("--rate", default="200mbit", help="of each link, in both directions (default: 200mbit)")
    verbs.add_parser("down", help="take them away")
    verbs.add_parser("show", help="what is up")
    run = verbs.add_parser("run", help="a command on every rank of every host")
    run.add_argument("--ranks-per-host", type=int, default=1)
    experiment = verbs.add_parser("experiment", help="the runs of an experiment, recorded in results/runs")
    experiment.add_argument("--ranks-per-host", type=int, default=1)
    experiment.add_argument("file", type=Path)
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    options = parser.parse_args()
    try:
        return act(options)
    except cluster.TestbedError as refusal:
        print(f"testbed: {refusal}", file=sys.stderr)
        return 2


def act(options: argparse.Namespace) -> int:
    match options.verb:
        case "up":
            cluster.up(options.hosts, options.rate)
        case "down":
            cluster.down()
        case "run":
            command = options.command[1:] if options.command[:1] == ["--"] else options.command
            if not command or options.ranks_per_host < 1:
                raise cluster.TestbedError("run takes --ranks-per-host from 1 on, and a command after --.")
            return cluster.run(command, options.ranks_per_host, {"OMP_NUM_THREADS": "1", **os.environ})
        case "experiment":
            from experiment import run_all

            return run_all(options.file, options.ranks_per_host, {"OMP_NUM_THREADS": "1", **os.environ})
    cluster.check_machine()
    print(f"{cluster.hosts_up()} hosts are up.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
