# The plan of a load: clients, topics, rate and duration, and the part of each process.
#
# With the pattern "pairs" a publisher and its subscribers are in one process. Otherwise every subscriber receives from
# every publisher, and both are distributed evenly. A window counts the deliveries in the process of its publisher.
import math
import os
import resource
from dataclasses import dataclass
from typing import Final, Literal

from broker.mqtt.fields import encode_length
from broker.mqtt.topics import check_filter, check_topic
from broker.reasons import ProtocolError
from cli.load.client import STAMP

Pattern = Literal["pairs", "fan-out", "fan-in"]

NUMBER: Final = "%i"
SPARE_DESCRIPTORS: Final = 32  # in addition to the connections
RATE_OF_A_PROCESS: Final = 200_000  # deliveries per second that one process handles well
KEEP_ALIVE: Final = 60  # seconds
LARGEST_PACKET: Final = (1 << 28) - 1


class BadPlan(ValueError):
    """The plan is not valid. The text says why and how to fix it."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Either *rate* (messages per second of all publishers) or *window* (messages in flight per publisher) is not 0."""

    pattern: Pattern
    publishers: int
    subscribers: int
    topic: str  # %i is the number of the publisher
    qos: int
    payload: int  # bytes
    version: int
    rate: float
    window: int
    seconds: float  # 0: no limit
    messages: int  # in total; 0: no limit
    connect_rate: float  # connections per second in total, 0: as fast as the broker accepts
    processes: int
    run: bytes  # four bytes that identify the load
    client_id: str  # prefix of the client ids
    user: str | None = None
    password: bytes | None = None

    def topic_of(self, publisher: int) -> bytes:
        return self.topic.replace(NUMBER, str(publisher)).encode(errors="surrogateescape")

    def filter_of(self, subscriber: int) -> bytes:
        if self.pattern == "pairs":
            return self.topic_of(subscriber % max(1, self.publishers))
        return self.topic.replace(NUMBER, "+").encode(errors="surrogateescape")

    def copies(self, publisher: int) -> int:
        """Return how many subscribers receive a message of *publisher*."""
        if self.pattern != "pairs":
            return self.subscribers
        return (self.subscribers - publisher - 1) // self.publishers + 1

    def quota(self, publisher: int) -> int:
        """Return how many messages *publisher* sends, -1 if only the time limits them."""
        totals = [self.messages] if self.messages else []
        if self.rate and self.seconds:
            totals.append(math.ceil(self.rate * self.seconds))
        return (min(totals) - publisher - 1) // self.publishers + 1 if totals else -1

    def parts(self) -> list["Part"]:
        """Return the part of each process."""
        return [self._part(process) for process in range(self.processes)]

    def _part(self, process: int) -> "Part":
        publishers = range(process, self.publishers, self.processes)
        subscribers = list(range(process, self.subscribers, self.processes))
        if self.pattern == "pairs" and self.publishers:
            subscribers = [number for number in range(self.subscribers) if number % self.publishers in publishers]
        return Part(self, process, list(publishers), subscribers)

    def as_json(self) -> dict[str, object]:
        """Return the plan without secrets."""
        return {
            "pattern": self.pattern,
            "publishers": self.publishers,
            "subscribers": self.subscribers,
            "topic": self.topic,
            "qos": self.qos,
            "payload": self.payload,
            "version": self.version,
            "rate": self.rate,
            "window": self.window,
            "processes": self.processes,
        }

    def check(self) -> None:
        """Raise BadPlan if the plan is not valid on any machine."""
        if self.payload < STAMP:
            raise BadPlan(f"--payload {self.payload} is too small: a message carries {STAMP} bytes of measurement.")
        if self.publishers + self.subscribers == 0:
            raise BadPlan("no publishers and no subscribers: there is nothing to do.")
        if self.pattern == "pairs" and self.publishers > 1 and NUMBER not in self.topic:
            raise BadPlan(f"--topic {self.topic} needs %i for pairs: otherwise all subscribers receive all messages.")
        most = self._most_processes()
        if self.processes > most:
            raise BadPlan(f"--processes {self.processes} is too large: some would have no clients; at most {most}.")
        if self.window and not self.qos and self._blind():
            raise BadPlan(
                "with QoS 0 a window needs a subscriber of each publisher in the same process, to notice deliveries: "
                "use --rate, --qos 1 or fewer --processes."
            )
        if not self.seconds and not self.messages:
            raise BadPlan("neither --seconds nor --messages: the load would never end.")
        self._check_topics()

    def _most_processes(self) -> int:
        """Return the number of processes beyond which a process would have no client."""
        paired = self.pattern == "pairs" and self.publishers > 0
        return self.publishers if paired else max(self.publishers, self.subscribers)

    def _blind(self) -> bool:
        """Return whether a publisher has no subscriber in its process."""
        return any(not part.copies(publisher) for part in self.parts() for publisher in part.publishers)

    def _check_topics(self) -> None:
        try:
            check_topic(self.topic_of(self.publishers))
            check_filter(self.filter_of(0))
        except ProtocolError as error:
            raise BadPlan(f"--topic {self.topic} is not valid: {error.detail}.") from None
        size = self.payload + len(self.topic_of(self.publishers)) + 2 + 2 + 1
        try:
            encode_length(size)
        except ValueError:
            raise BadPlan(f"--payload {self.payload} is too large: an MQTT packet has at most 256 MiB.") from None


@dataclass(frozen=True)
class Part:
    """The clients of one process."""

    plan: Plan
    process: int
    publishers: list[int]
    subscribers: list[int]

    def copies(self, publisher: int) -> int:
        """Return how many subscribers of this process receive a message of *publisher*."""
        if self.plan.pattern == "pairs":
            return self.plan.copies(publisher)
        return len(self.subscribers)

    def connections(self) -> int:
        return len(self.publishers) + len(self.subscribers)

    def rate(self) -> float:
        """Return the rate of this process, in messages per second."""
        return self.plan.rate * len(self.publishers) / max(1, self.plan.publishers)


def enough_processes(pattern: Pattern, publishers: int, subscribers: int, rate: float) -> int:
    """Return a suitable number of processes for this machine; half of the cores are left to the broker."""
    cores = len(os.sched_getaffinity(0))
    if pattern == "pairs":
        most, copies = max(publishers, 1), subscribers / max(1, publishers)
    else:
        most, copies = max(1, min(publishers, subscribers)), subscribers
    wanted = cores // 2 if not rate else int(rate * max(1, copies) / RATE_OF_A_PROCESS) + 1
    return max(1, min(most, wanted, cores))


def allow_descriptors(connections: int) -> None:
    """Raise the descriptor limit so that one process can have *connections*. Raises BadPlan if it is not allowed."""
    wanted = connections + SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        processes = -(-connections // max(1, hard - SPARE_DESCRIPTORS))
        raise BadPlan(
            f"{connections} connections in one process need {wanted} descriptors, but only {hard} are allowed: "
            f"use --processes {processes} or more, or raise the limit (ulimit -n)."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
