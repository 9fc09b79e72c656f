# What tests say to a broker again and again, and what they want to know of its answers.
import socket
from collections.abc import Iterable
from typing import Final

from broker.mqtt.packets import V5, Ack, Connect, Disconnect, Packet, Publish, SubAck, Subscribe, Wanted
from broker.mqtt.properties import SUBSCRIPTION_IDENTIFIER
from broker.reasons import CloseReason, DropReason
from tests.inprocess import Broker, Client

PLENTY: Final = 4 << 20  # bytes: more than the broker and the kernel may hold for a client


def subscribe(client: Client, *filters: str | Wanted, qos: int = 0, identifier: int = 0) -> list[Publish]:
    """SUBSCRIBE, every filter granted; the messages that came with the answer."""
    wanted = [f if isinstance(f, Wanted) else Wanted(f.encode(), qos) for f in filters]
    client.send(Subscribe(1, wanted, {SUBSCRIPTION_IDENTIFIER: [identifier]} if identifier else {}))
    answer = client.receive()
    assert [w.qos for w in wanted] == next(p.codes for p in answer if isinstance(p, SubAck))
    return messages(answer)


def messages(packets: Iterable[Packet]) -> list[Publish]:
    return [packet for packet in packets if isinstance(packet, Publish)]


def payloads(packets: Iterable[Packet]) -> list[bytes]:
    return [message.payload for message in messages(packets)]


def acks(packets: Iterable[Packet], kind: int) -> list[int]:
    """The packet ids that were acknowledged by packets of type *kind*."""
    return [packet.packet_id for packet in packets if isinstance(packet, Ack) and packet.kind == kind]


def goodbye(client: Client) -> int | None:
    """The code of the DISCONNECT that was the last word of the broker, None without one; it closed."""
    said = client.receive()
    assert client.closed
    return said[-1].code if said and isinstance(said[-1], Disconnect) else None


def push(client: Client, packet: bytes) -> int:
    """Send *packet* again and again until the broker takes no more; how many bytes it took."""
    block = packet * (65536 // len(packet))
    total = 0
    stuck = False
    while total < PLENTY:
        try:
            total += client.socket.send(block[total % len(block) :])
            stuck = False
        except BlockingIOError:
            if stuck:
                return total
            stuck = True
            client.broker.settle()
    raise AssertionError("the broker takes it all")


def narrow(broker: Broker) -> None:
    """Let the kernel hold only a few kilobytes for each client, so that one that does not read is soon felt."""
    for stream in broker.streams():
        stream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


def greeting(client_id: str, version: int = V5) -> Connect:
    return Connect(version, client_id)


def closed(broker: Broker) -> dict[CloseReason, int]:
    """How many connections ended, by reason."""
    counts = broker.counters.closed_by_reason
    return {reason: counts[reason.label] for reason in CloseReason if counts[reason.label]}


def dropped(broker: Broker) -> dict[DropReason, int]:
    """How many messages did not reach a receiver, by reason."""
    counts = broker.counters.dropped_by_reason
    return {reason: counts[reason.label] for reason in DropReason if counts[reason.label]}


def spent(broker: Broker, client_id: str) -> int:
    """The credits that a client has spent while the level was always 0."""
    return broker.protection.accounts.arrive(client_id, broker.clock.now).spent
