# Clients of nodes that are processes, and what tells when nothing more is under way between these nodes.
#
# A process cannot be asked whether it has settled. So each worker has an observer, a client with topics of its own
# ("$" keeps them out of everybody's wildcards). What workers tell each other arrives in order, by one lane for
# messages and by one for subscriptions: when each observer has received what all others published, and all workers
# have confirmed what each subscribed to, all that was sent before has arrived as well. What that has set off takes
# one more round.
import socket
import time
from collections.abc import Callable, Iterable
from itertools import count
from typing import Final

from broker.mqtt.encode import encode
from broker.mqtt.packets import (
    V5,
    Ack,
    Packet,
    PingReq,
    PingResp,
    Publish,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Wanted,
)
from broker.mqtt.stream import PacketReader
from tests.system import node
from tests.system.cluster import Cluster
from tests.system.processes import HOST
from tests.system.raw import LIMIT, RawClient

PATIENCE: Final = 15.0  # seconds for what should take milliseconds
ROUNDS: Final = 2
NOBODY_HEARS: Final = 0x10
EVERYTHING: Final = [b"+/#", b"$a/+"]  # all that is retained, by filters that no client of a conversation has
HELLO: Final = b"$observers/hello"


class NodeClient:
    """One connection to a node, a `Client`."""

    def __init__(self, port: int, version: int) -> None:
        self.version = version
        self.inbox: list[Packet] = []
        self.closed = False
        self.socket = socket.create_connection((HOST, port), timeout=PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = PacketReader(version, LIMIT)
        self._pings = 0  # answers to come

    def send(self, *packets: Packet) -> None:
        self.socket.sendall(b"".join(encode(packet, self.version) for packet in packets))

    def receive(self) -> list[Packet]:
        """What came until the node had read all that was sent to it."""
        if not self.closed:
            self.ping()
            while self._pings and not self.closed:
                self._read()
        received, self.inbox = self.inbox, []
        return received

    def ping(self) -> None:
        """Begin what `receive()` waits for."""
        if not self.closed and not self._pings:
            self._pings += 1
            self.send(PingReq())

    def first_words(self) -> list[Packet]:
        """What came, at least one packet."""
        while not self.inbox and not self.closed:
            self._read()
        received, self.inbox = self.inbox, []
        return received

    def last_words(self) -> list[Packet]:
        """What came until the node closed the connection."""
        while not self.closed:
            self._read()
        received, self.inbox = self.inbox, []
        return received

    def drop(self) -> None:
        """End without a DISCONNECT; return when the node has noticed."""
        if not self.closed:
            self.socket.shutdown(socket.SHUT_WR)
            said = self.last_words()
            assert not said, f"it was settled, but {said} came"
        self.socket.close()

    def _read(self) -> None:
        try:
            data = self.socket.recv(65536)
        except TimeoutError:
            raise AssertionError(f"the node said nothing for {PATIENCE} s") from None
        except ConnectionResetError:
            data = b""
        if not data:
            self.closed = True
            return
        for packet in self._reader.feed(data):
            if isinstance(packet, PingResp):
                self._pings -= 1
            else:
                self.inbox.append(packet)


class NodePlace:
    """A node, to which clients of a conversation connect."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._clients: list[NodeClient] = []

    def open(self, version: int) -> NodeClient:
        client = NodeClient(self._port, version)
        self._clients.append(client)
        return client

    def close(self) -> None:
        """End all connections, whatever they are owed."""
        for client in self._clients:
            client.socket.close()
        self._clients.clear()


class Observers:
    """A client at each worker of *cluster*."""

    def __init__(self, cluster: Cluster) -> None:
        self._numbers = count(1)
        self._clients: list[RawClient] = []
        for one in cluster.nodes:
            there: dict[int, RawClient] = {}
            deadline = time.monotonic() + PATIENCE
            while len(there) < cluster.workers:  # the kernel chooses the worker
                assert time.monotonic() < deadline, f"{sorted(there)} of {cluster.workers} workers have accepted"
                name = f"observer-{one.port}-{next(self._numbers)}"
                client = RawClient(one.port, V5)
                client.connect(name)
                worker = node.ask(one.control, "session", client=name)["worker"]
                if worker in there:
                    client.disconnect()
                else:
                    there[worker] = client
            self._clients += there.values()
        for client in self._clients:
            client.subscribe(Wanted(HELLO, 1))

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def settle(self) -> None:
        """Return when all that clients have sent, and what follows from it, has arrived."""
        for _ in range(ROUNDS):
            number = b"%d" % next(self._numbers)
            topic = b"$observers/" + number
            self._all(lambda id, topic=topic: Subscribe(id, [Wanted(topic)]), SubAck)  # type: ignore[misc]
            self._all(lambda id, number=number: Publish(HELLO, number, 1, packet_id=id), Ack)  # type: ignore[misc]
            for client in self._clients:
                assert [number] * len(self._clients) == [client.take().payload for _ in self._clients]
            self._all(lambda id, topic=topic: Unsubscribe(id, [topic]), UnsubAck)  # type: ignore[misc]

    def _all(self, say: Callable[[int], Packet], answer: type[Packet]) -> None:
        """Each of us says the same at the same time, and is answered."""
        for client in self._clients:
            client.send(say(client.next_packet_id()))
        for client in self._clients:
            ahead: list[Packet] = []
            while not isinstance(packet := client.receive(), answer):
                ahead.append(packet)
            client.put_back(ahead)

    def compare_retained(self, wanted: dict[bytes, bytes]) -> None:
        """Each worker gives *wanted*, payloads by topics, to a new subscriber, at once or soon."""
        for client in self._clients:
            deadline = time.monotonic() + PATIENCE
            while (found := self._retained(client)) != wanted:
                assert time.monotonic() < deadline, f"{found} is retained, {wanted} should be"

    def _retained(self, client: RawClient) -> dict[bytes, bytes]:
        client.send(Subscribe(client.next_packet_id(), [Wanted(filter) for filter in EVERYTHING]))
        found: dict[bytes, bytes] = {}
        while not isinstance(packet := client.receive(), PingResp):
            if isinstance(packet, Publish):
                assert packet.retain and packet.topic not in found, packet
                found[packet.topic] = packet.payload
            else:
                client.send(PingReq())  # SUBACK, which waits for other workers, and what is retained comes behind it
        client.send(Unsubscribe(client.next_packet_id(), EVERYTHING))
        client.expect(UnsubAck)
        return found

    def compare_unheard(self, topics: Iterable[bytes]) -> None:
        """Each worker says that nobody has subscribed to any of *topics*, at once or soon."""
        for client in self._clients:
            deadline = time.monotonic() + PATIENCE
            unheard = list(topics)
            while unheard:
                for topic in unheard:
                    client.send(Publish(topic, b"nobody", 1, packet_id=client.next_packet_id()))
                codes = [client.expect(Ack).code for _ in unheard]
                unheard = [topic for topic, code in zip(unheard, codes, strict=True) if code != NOBODY_HEARS]
                assert not unheard or time.monotonic() < deadline, f"who has subscribed to {unheard}?"

    def forget(self, topics: Iterable[bytes]) -> None:
        """Delete what is retained for *topics*."""
        client = self._clients[0]
        for topic in topics:
            client.publish(topic.decode(), b"", 1, retain=True)
        self.settle()
        self.compare_retained({})
