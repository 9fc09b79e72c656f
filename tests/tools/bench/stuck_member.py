# How soon two members of a group have the work of the third, which has stopped to acknowledge.
#
# Three services share a filter. Messages come on many topic names all the time, each of which is in one partition. Then
# one service acknowledges nothing any more. It has until its `application.pack_timeout`, from its oldest message on; so
# what is measured is the time from that deadline to the first message that another member gets, for each topic
# name that the stuck one had. The longest counts, with the time between two messages of a topic name in it.
import select
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from broker.mqtt.encode import encode
from broker.mqtt.packets import PUBACK, V5, V311, Ack, Connect, Properties, Publish, SubAck, Subscribe, Wanted
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL
from broker.mqtt.stream import PacketReader
from tests.system.processes import HOST, PATIENCE
from tests.system.raw import LIMIT
from tests.tools.bench.applications import SETTINGS, log_node
from tests.tools.bench.contenders import Bench
from tests.tools.bench.table import markdown, number

TIMEOUT: Final = 1.0  # application.pack_timeout, in seconds
STUCK: Final = {"application.pack_timeout": f"{TIMEOUT:g}s", "application.ack_retries": 0}  # it stays connected
TOPICS: Final = 48
EVERY: Final = 0.02  # seconds between two messages of a topic name
SETTLES: Final = 3.0  # seconds in which the members share the work
WATCHED: Final = 5.0  # seconds behind the deadline
MOST_MS: Final = 300.0
MEMBERS: Final = ("stuck", "second", "third")


class Member:
    """A client that acknowledges what it gets, unless it is told otherwise."""

    def __init__(self, port: int, client_id: str, version: int = V5, filter: bytes = b"") -> None:
        self.silent_since = 0.0  # when it got the first message that it did not acknowledge
        self.silent = False
        self.last: dict[bytes, float] = {}  # when it got the last message of a topic name
        self.first: dict[bytes, float] = {}  # and the first one since `first` was emptied
        self._version = version
        self._reader = PacketReader(version, LIMIT)
        self._packets: list[object] = []
        self.socket = socket.create_connection((HOST, port), timeout=PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        properties: Properties = {SESSION_EXPIRY_INTERVAL: 3600} if version == V5 else {}
        self.send(Connect(version, client_id, False, 0, properties=properties))
        self.read()
        if filter:
            self.send(Subscribe(1, [Wanted(filter, 1)]))
            while not any(isinstance(each, SubAck) for each in self.read()):
                pass

    def send(self, packet: Any) -> None:
        self.socket.sendall(encode(packet, self._version))

    def read(self) -> Sequence[object]:
        """Take what is there, or wait for something."""
        data = self.socket.recv(1 << 16)
        assert data, "the broker has closed the connection"
        packets = list(self._reader.feed(data))
        now = time.monotonic()
        for packet in packets:
            if isinstance(packet, Publish):
                self._take(packet, now)
        return packets

    def _take(self, message: Publish, now: float) -> None:
        self.last[message.topic] = now
        self.first.setdefault(message.topic, now)
        if self.silent:
            self.silent_since = self.silent_since or now
        elif message.qos:
            self.send(Ack(PUBACK, message.packet_id))


def measure(bench: Bench, logs: Sequence[str], runs: int, quick: bool) -> tuple[str, dict[str, Any]]:
    """A table, and every single result: milliseconds of each topic name. The median of the longest of *runs* counts."""
    rows: list[list[Any]] = []
    results: dict[str, Any] = {}
    for log in logs:
        found = []
        for _ in range(1 if quick else runs):
            with log_node(bench, log, {**SETTINGS, **STUCK}) as node:
                found.append(_once(node.broker.port))
        results[log] = found
        longest = statistics.median(max(each) for each in found)
        middle = statistics.median(statistics.median(each) for each in found)
        verdict = "fine" if longest <= MOST_MS else "missed"
        rows.append([f"logs in {log}", number(middle), number(longest), f"at most {MOST_MS:g}", verdict])
    return markdown(["ms from the deadline of a stuck member", "median", "longest", "bar", ""], rows), results


def _once(port: int) -> list[float]:
    versions = (V311, V5, V5)  # one of MQTT 5 would be disconnected
    members = [
        Member(port, name, version, b"$share/group/stuck/#") for name, version in zip(MEMBERS, versions, strict=True)
    ]
    publisher = Member(port, "publisher", V311)
    stuck, *others = members
    ticks = _publishing(publisher, members)
    _until(ticks, time.monotonic() + SETTLES)
    stuck.last.clear()
    _until(ticks, time.monotonic() + 10 * EVERY)
    work = list(stuck.last)
    assert work, "the stuck member has no work"
    stuck.silent = True
    while not stuck.silent_since:
        next(ticks)
    deadline = stuck.silent_since + TIMEOUT
    _until(ticks, deadline)
    for other in others:
        other.first.clear()
    _until(ticks, deadline + WATCHED)
    for each in (*members, publisher):
        each.socket.close()
    missing = [topic for topic in work if all(topic not in other.first for other in others)]
    assert not missing, f"nobody has the work of {missing}"
    return [1000 * (min(other.first[topic] for other in others if topic in other.first) - deadline) for topic in work]


def _until(ticks: Iterator[float], end: float) -> None:
    while next(ticks) < end:
        pass


def _publishing(publisher: Member, members: Sequence[Member]) -> Iterator[float]:
    """Publish on each topic name every EVERY seconds, and read what comes; gives the time after each step."""
    sockets = {member.socket: member for member in (*members, publisher)}
    sent = 0
    due = time.monotonic()
    while True:
        now = time.monotonic()
        while due <= now:
            due += EVERY / TOPICS
            sent += 1
            topic = b"stuck/%d" % (sent % TOPICS)
            publisher.send(Publish(topic, b"x" * 64, 1, packet_id=sent % 60_000 + 1))
        readable, _, _ = select.select(list(sockets), [], [], max(0.0, due - time.monotonic()))
        for each in readable:
            sockets[each].read()
        yield time.monotonic()
