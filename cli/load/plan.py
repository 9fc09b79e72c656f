# What a load is: which clients, what they send to whom, how fast, how long. And which part of it each process has.
#
# With pairs a publisher and its subscribers are in one process; otherwise every subscriber gets from every publisher,
# and both are dealt out in turn. A window counts the deliveries in the publisher's own process.
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
SPARE_DESCRIPTORS: Final = 32  # beside the connections
RATE_OF_A_PROCESS: Final = 200_000  # deliveries a second that one process paces well
KEEP_ALIVE: Final = 60  # seconds
LARGEST_PACKET: Final = (1 << 28) - 1


class BadPlan(ValueError):
    """A load that cannot be. Its text says what and what would be right."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """*rate* (messages a second of all publishers, 0: none) or *window* (messages in flight of one, 0: none)."""

    pattern: Pattern
    publishers: int
    subscribers: int
    topic: str  # %i is the number of the publisher
    qos: int
    payload: int  # bytes
    version: int
    rate: float
    window: int
    seconds: float  # 0: no end but that of the messages
    messages: int  # in all; 0: no end but that of the time
    connect_rate: float  # connections a second in all, 0: as fast as they are answered
    processes: int
    run: bytes  # four bytes that no other load has
    client_id: str  # what client ids begin with
    user: str | None = None
    password: bytes | None = None

    def topic_of(self, publisher: int) -> bytes:
        return self.topic.replace(NUMBER, str(publisher)).encode(errors="surrogateescape")

    def filter_of(self, subscriber: int) -> bytes:
        if self.pattern == "pairs":
            return self.topic_of(subscriber % max(1, self.publishers))
        return self.topic.replace(NUMBER, "+").encode(errors="surrogateescape")

    def copies(self, publisher: int) -> int:
        """How many subscribers get what *publisher* sends."""
        if self.pattern != "pairs":
            return self.subscribers
        return (self.subscribers - publisher - 1) // self.publishers + 1

    def quota(self, publisher: int) -> int:
        """How many messages *publisher* sends, -1 for as many as it can in the time."""
        totals = [self.messages] if self.messages else []
        if self.rate and self.seconds:
            totals.append(math.ceil(self.rate * self.seconds))
        return (min(totals) - publisher - 1) // self.publishers + 1 if totals else -1

    def parts(self) -> list["Part"]:
        """One for each process."""
        return [self._part(process) for process in range(self.processes)]

    def _part(self, process: int) -> "Part":
        publishers = range(process, self.publishers, self.processes)
        subscribers = list(range(process, self.subscribers, self.processes))
        if self.pattern == "pairs" and self.publishers:
            subscribers = [number for number in range(self.subscribers) if number % self.publishers in publishers]
        return Part(self, process, list(publishers), subscribers)

    def as_json(self) -> dict[str, object]:
        """What was asked for, without secrets."""
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
        """Refuse what cannot be done on any machine: BadPlan."""
        if self.payload < STAMP:
            raise BadPlan(f"--payload {self.payload} is too small: a message carries {STAMP} bytes of measurement.")
        if self.publishers + self.subscribers == 0:
            raise BadPlan("no publishers and no subscribers: there is nothing to do.")
        if self.pattern == "pairs" and self.publishers > 1 and NUMBER not in self.topic:
            raise BadPlan(f"--topic {self.topic}: pairs need %i in it, or all would get what all send.")
        most = self._most_processes()
        if self.processes > most:
            raise BadPlan(f"--processes {self.processes} is more than there is work for: at most {most}.")
        if self.window and not self.qos and self._blind():
            raise BadPlan(
                "with QoS 0 a window needs a subscriber of each publisher in its process, or nothing tells it "
                "that a message has arrived: use --rate, --qos 1 or fewer --processes."
            )
        if not self.seconds and not self.messages:
            raise BadPlan("neither --seconds nor --messages: the load would never end.")
        self._check_topics()

    def _most_processes(self) -> int:
        """One more would have no client."""
        paired = self.pattern == "pairs" and self.publishers > 0
        return self.publishers if paired else max(self.publishers, self.subscribers)

    def _blind(self) -> bool:
        """Whether some publisher sees none of its deliveries."""
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
            raise BadPlan(f"--payload {self.payload} is too large: a packet of MQTT has at most 256 MiB.") from None


@dataclass(frozen=True)
class Part:
    """The clients of one process."""

    plan: Plan
    process: int
    publishers: list[int]
    subscribers: list[int]

    def copies(self, publisher: int) -> int:
        """How many of its subscribers get what *publisher* sends."""
        if self.plan.pattern == "pairs":
            return self.plan.copies(publisher)
        return len(self.subscribers)

    def connections(self) -> int:
        return len(self.publishers) + len(self.subscribers)

    def rate(self) -> float:
        """Its share of the messages a second."""
        return self.plan.rate * len(self.publishers) / max(1, self.plan.publishers)


def enough_processes(pattern: Pattern, publishers: int, subscribers: int, rate: float) -> int:
    """How many processes a load needs on this machine, where the broker may want half of the cores."""
    cores = len(os.sched_getaffinity(0))
    if pattern == "pairs":
        most, copies = max(publishers, 1), subscribers / max(1, publishers)
    else:
        most, copies = max(1, min(publishers, subscribers)), subscribers
    wanted = cores // 2 if not rate else int(rate * max(1, copies) / RATE_OF_A_PROCESS) + 1
    return max(1, min(most, wanted, cores))


def allow_descriptors(connections: int) -> None:
    """Raise our limit of descriptors so that one process can have *connections*: BadPlan if that is not allowed."""
    wanted = connections + SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        processes = -(-connections // max(1, hard - SPARE_DESCRIPTORS))
        raise BadPlan(
            f"{connections} connections in one process need {wanted} descriptors, and {hard} are allowed: "
            f"use --processes {processes} or more, or raise the limit (ulimit -n)."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
