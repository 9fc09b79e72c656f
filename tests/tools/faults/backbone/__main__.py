# python -m tests.tools.faults backbone --faults 200 [--seed N]: the inbound backbone under faults, in a real Kafka.
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from tests.tools.faults.backbone.run import BackboneRun
from tests.tools.faults.durable.__main__ import campaign, campaign_options, run

FAULTS: Final = 200
MESSAGES: Final = 500  # for each fault


def _run(folder: Path, seed: int, workers: int, faults: int, messages: int) -> BackboneRun:
    return BackboneRun(folder, seed, workers, faults, messages=messages)


def main(words: Sequence[str]) -> int:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # or the node would outlive its run
    parser = campaign_options("backbone", "Harm a node with an inbound backbone, and its Kafka.", FAULTS, MESSAGES)
    return 1 if campaign(parser.parse_args(words), partial(run, make=_run)).failed else 0
