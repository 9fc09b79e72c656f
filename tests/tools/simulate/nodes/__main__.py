# python -m tests.tools.simulate.nodes [--nodes 10,50,200] [--workers 2] [--seed 1] [--cpu]: what each thing that
# happens in a cluster costs one of its workers, in lines of its code that are executed; with --cpu in microseconds.
import argparse
import sys
from collections.abc import Sequence
from contextlib import closing

from tests.tools.simulate.nodes.costs import Costs, settlers
from tests.tools.simulate.nodes.world import World


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.simulate.nodes", description="Simulate a cluster.")
    parser.add_argument("--nodes", default="10,50,200", help="sizes of the cluster (default 10,50,200)")
    parser.add_argument("--workers", type=int, default=2, help="of each node (default 2)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cpu", action="store_true", help="microseconds of CPU, which another machine needs others of")
    return parser


def main(words: Sequence[str]) -> int:
    arguments = options().parse_args(words)
    sizes = [int(nodes) for nodes in arguments.nodes.split(",")]
    unit = "us of CPU" if arguments.cpu else "lines"
    table: dict[str, list[str]] = {}
    for nodes in sizes:
        with closing(World(nodes, arguments.workers, arguments.seed)) as world:
            costs = Costs(world, exact=not arguments.cpu)
            found = {"a second without events": costs.idle, **costs.all()}
        for kind, cost in found.items():
            value = cost.seconds * 1e6 if arguments.cpu else cost.lines
            each = f" ({value / costs.peers:.0f} for each other worker)" if cost.to_all else ""
            table.setdefault(kind, []).append(f"{value:.0f}{each}")
        dead = settlers(nodes, arguments.workers)
        table.setdefault("workers that settle a dead node", []).append(str(len(dead)))
    print(f"{unit}, with {' / '.join(str(nodes) for nodes in sizes)} nodes of {arguments.workers} workers")
    for kind, values in table.items():
        print(f"{kind:32} {' / '.join(values)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
