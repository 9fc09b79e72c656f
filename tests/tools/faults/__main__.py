# python -m tests.tools.faults --runs 50 [--seed N] [--workers 3] [--faults 6]: the long run. --seed repeats one.
# python -m tests.tools.faults durable --faults 1000 [--seed N]: the same for sessions that are stored.
# python -m tests.tools.faults applications --faults 200 [--seed N]: the same for APPLICATION clients and their logs.
# python -m tests.tools.faults backbone --faults 200 [--seed N]: the same for the inbound backbone.
# python -m tests.tools.faults cluster --faults 500 [--seed N]: the same for nodes that share a Redis.
import argparse
import sys
import tempfile
from pathlib import Path

from tests.tools.faults.applications import __main__ as applications
from tests.tools.faults.backbone import __main__ as backbone
from tests.tools.faults.cluster import __main__ as cluster
from tests.tools.faults.durable import __main__ as durable
from tests.tools.faults.run import Outcome, Run, random_seed


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.faults", description="Harm a Weir of its own.")
    parser.add_argument("--runs", type=int, default=1, help="how many (default 1), each with the next seed")
    parser.add_argument("--seed", type=int, help="of the first; a random one if it is left out")
    parser.add_argument("--workers", type=int, default=3, help="of the node (default 3)")
    parser.add_argument("--faults", type=int, default=6, help="in each run (default 6)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where the nodes' logs are to stay")
    return parser


def report(outcome: Outcome) -> str:
    figures = ", ".join(f"{name} {value:.4g}" for name, value in outcome.figures.items())
    lines = [f"seed {outcome.seed}: {'FAILED' if outcome.failures else 'well'}; {figures}"]
    if outcome.failures:
        lines += [f"  {fault}" for fault in outcome.faults]
    return "\n".join([*lines, *(f"  ! {failure}" for failure in outcome.failures)])


def main() -> int:
    if sys.argv[1:2] == ["durable"]:
        return durable.main(sys.argv[2:])
    if sys.argv[1:2] == ["applications"]:
        return applications.main(sys.argv[2:])
    if sys.argv[1:2] == ["backbone"]:
        return backbone.main(sys.argv[2:])
    if sys.argv[1:2] == ["cluster"]:
        return cluster.main(sys.argv[2:])
    arguments = options().parse_args()
    first = random_seed() if arguments.seed is None else arguments.seed
    failed = 0
    for seed in range(first, first + arguments.runs):
        with tempfile.TemporaryDirectory(prefix="weir-faults-") as temporary:
            folder = Path(temporary) if arguments.keep is None else arguments.keep / str(seed)
            folder.mkdir(parents=True, exist_ok=True)
            outcome = Run(folder, seed, arguments.workers, arguments.faults).go()
        print(report(outcome), flush=True)
        failed += bool(outcome.failures)
    print(f"{failed} of {arguments.runs} runs failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
