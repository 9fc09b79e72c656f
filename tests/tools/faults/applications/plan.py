# What happens to a node with APPLICATION clients in one run, and to its log: faults of the durable plan, and others.
from collections.abc import Sequence
from random import Random
from typing import Final

from broker.config.schema import POWER
from tests.tools.faults.durable import plan as durable
from tests.tools.faults.durable.plan import Planned, draw

# Where the messages of APPLICATION clients are.
REDIS_LOG: Final = "streams of Redis"
KAFKA_LOG: Final = "Kafka"
LOGS: Final = (REDIS_LOG, KAFKA_LOG)

KILL_CARRIER: Final = "kill carrier"
STOP_CARRIER: Final = "stop carrier"
KILL_KAFKA: Final = "kill Kafka"  # it is started again
STOP_KAFKA: Final = "stop Kafka"
CUT_KAFKA_REQUESTS: Final = "cut requests to Kafka"  # the connections, in the middle of a frame
CUT_KAFKA_REPLIES: Final = "cut replies of Kafka"
DELAY_KAFKA: Final = "delay Kafka"
HALF_OPEN_KAFKA: Final = "half-open connections to Kafka"
KILL_CARRIER_ALONE: Final = "kill carrier while Kafka is stopped"

OF_CARRIER: Final = {KILL_CARRIER: 4, STOP_CARRIER: 4}
OF_KAFKA: Final = {KILL_KAFKA: 2, STOP_KAFKA: 3, KILL_CARRIER_ALONE: 2}
AT_KAFKA: Final = {CUT_KAFKA_REQUESTS: 3, CUT_KAFKA_REPLIES: 3, DELAY_KAFKA: 2, HALF_OPEN_KAFKA: 2}
# Each run has each of these, if it has so many faults.
PROCESSES: Final = (
    durable.KILL_WORKER,
    durable.STOP_WORKER,
    durable.KILL_REDIS,
    durable.STOP_REDIS,
    durable.KILL_SUPERVISOR,
    durable.STOP_SUPERVISOR,
    KILL_CARRIER,
    STOP_CARRIER,
)
KAFKA: Final = (KILL_KAFKA, STOP_KAFKA, *AT_KAFKA)


def certain(log: str) -> Sequence[str]:
    """The kinds of faults that a run with *log* begins with."""
    return (*PROCESSES, *KAFKA) if log == KAFKA_LOG else PROCESSES


def plan(
    random: Random, log: str, server: str, durability: str, workers: int, faults: int, brisk: bool
) -> list[Planned]:
    """*server*, *durability*: of Redis. *brisk*: see `durable.plan()`."""
    first = list(certain(log))
    random.shuffle(first)
    return draw(random, weights(log, server, durability), workers, faults, brisk, first)


def weights(log: str, server: str, durability: str) -> dict[str, int]:
    """How often each kind of fault is drawn."""
    found = {**durable.ANYWHERE, **OF_CARRIER}
    if log == KAFKA_LOG:
        found |= OF_KAFKA | AT_KAFKA
    if server == durable.BEHIND_PROXY:
        found |= durable.AT_THE_PROXY
        if durability != POWER:  # nobody syncs the files of that server
            del found[durable.CUT_POWER]
    return found
