# python -m tests.tools.faults applications --faults 200 [--log kafka] [--seed N]: APPLICATION clients under faults.
#
# It is a campaign as that of durable sessions, whose judge it has; by turns the logs are streams of Redis and Kafka.
import argparse
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from tests.tools.faults.applications.plan import KAFKA_LOG, REDIS_LOG
from tests.tools.faults.applications.run import ApplicationRun
from tests.tools.faults.durable.__main__ import campaign, campaign_options, run

FAULTS: Final = 200
MESSAGES: Final = 500  # for each fault
LOGS: Final = {"redis": REDIS_LOG, "kafka": KAFKA_LOG, "both": ""}


def options() -> argparse.ArgumentParser:
    parser = campaign_options("applications", "Harm a node with APPLICATION clients, and its log.", FAULTS, MESSAGES)
    parser.add_argument("--log", choices=LOGS, default="both", help="what has the messages (default: both by turns)")
    return parser


def main(words: Sequence[str]) -> int:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # or the node would outlive its run
    arguments = options().parse_args(words)

    def make(folder: Path, seed: int, workers: int, faults: int, messages: int) -> ApplicationRun:
        return ApplicationRun(folder, seed, workers, faults, messages=messages, log=LOGS[arguments.log])

    return 1 if campaign(arguments, partial(run, make=make)).failed else 0
