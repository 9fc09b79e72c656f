# What happens to a node with an inbound backbone, and to its Kafka: as with logs of APPLICATION clients in Kafka.
from random import Random
from typing import Final

from tests.tools.faults.applications import plan as applications
from tests.tools.faults.durable import plan as durable
from tests.tools.faults.durable.plan import Planned, draw

# A short run has these: what they harm is what a publish passes on its way.
FEW: Final = (
    durable.KILL_WORKER,
    durable.STOP_WORKER,
    durable.STOP_REDIS,
    applications.KILL_CARRIER,
    applications.STOP_KAFKA,
    applications.CUT_KAFKA_REQUESTS,
)


def plan(random: Random, server: str, durability: str, workers: int, faults: int, brisk: bool) -> list[Planned]:
    """*server*, *durability*: of Redis. *brisk*: see `durable.plan()`; it begins with FEW."""
    first = list(FEW if brisk else applications.certain(applications.KAFKA_LOG))
    random.shuffle(first)
    weights = applications.weights(applications.KAFKA_LOG, server, durability)
    return draw(random, weights, workers, faults, brisk, first)
