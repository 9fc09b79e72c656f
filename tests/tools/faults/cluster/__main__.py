# python -m tests.tools.faults cluster --faults 500 [--seed N]: nodes that share a Redis under faults.
#
# It is a campaign as that of durable sessions, whose judge it has; with two or three nodes, by the seed.
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from tests.tools.faults.cluster.run import ClusterRun
from tests.tools.faults.durable.__main__ import campaign, campaign_options, run

FAULTS: Final = 500
MESSAGES: Final = 500  # for each fault
WORKERS: Final = 2


def _run(folder: Path, seed: int, workers: int, faults: int, messages: int) -> ClusterRun:
    return ClusterRun(folder, seed, workers, faults, messages=messages)


def main(words: Sequence[str]) -> int:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # or the nodes would outlive their run
    parser = campaign_options("cluster", "Harm nodes that share a Redis.", FAULTS, MESSAGES)
    parser.set_defaults(workers=WORKERS)
    return 1 if campaign(parser.parse_args(words), partial(run, make=_run)).failed else 0
