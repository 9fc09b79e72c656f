# APPLICATION clients of a whole node: other people's clients, and a carrier and workers that are killed.
import os
import select
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

import pytest
import redis
from paho.mqtt.enums import MQTTProtocolVersion

from broker.insight.explain import explain
from broker.insight.facts import Facts
from broker.mqtt.packets import PUBACK, PUBCOMP, PUBREC, PUBREL, Ack, Publish
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL
from tests.cli.running import weir as cli
from tests.system import node
from tests.system.addresses import Address
from tests.system.nodes import Node, StartNode
from tests.system.programs.command_line import CommandLine
from tests.system.programs.interface import Listener, Program, Wish
from tests.system.programs.paho_client import Paho
from tests.system.raw import RawClient

pytestmark = pytest.mark.weir_only("a matter of Weir's processes")

SERVICE: Final = "service1"
SETTINGS: Final = {"application__clients": '[{client = "service*"}]', "store__durability": "process"}
PROGRAMS: Final[dict[str, Program]] = {
    "mosquitto_sub": CommandLine("mqttv311"),
    "paho": Paho(MQTTProtocolVersion.MQTTv5),
}
COUNT: Final = 50
each_program = pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())


@pytest.fixture
def listen(tmp_path: Path) -> Callable[[Node, Program, int], Listener]:
    """Connects the service, or has it come back."""

    def start(weir: Node, program: Program, qos: int) -> Listener:
        return program.listen(Address("tcp", weir.port, tmp_path), "readings/#", Wish(qos, SERVICE))

    return start


Listen = Callable[[Node, Program, int], Listener]


def facts(weir: Node, client_id: str) -> dict[str, Any]:
    told: dict[str, Any] = node.ask(weir.control, "client", client=client_id)
    return told


def publisher_at(weir: Node, worker: int) -> RawClient:
    """The client publisher-WORKER, which is connected to *worker*."""
    name = f"publisher-{worker}"
    while True:  # the kernel chooses the worker of each connection
        client = weir.client(name)
        if facts(weir, name)["worker"] == worker:
            return client
        client.close()


def send(client: RawClient, name: str, first: int, count: int = COUNT, qos: int = 1) -> None:
    """Publish numbers from *first* on, and wait for nothing."""
    for number in range(first, first + count):
        client.send(Publish(b"readings/" + name.encode(), b"%d" % number, qos, packet_id=number + 1))


def acknowledged(client: RawClient, first: int, count: int = COUNT, qos: int = 1) -> None:
    """Wait until what was sent is acknowledged."""
    packet_ids = range(first + 1, first + 1 + count)
    for packet_id in packet_ids:
        client.expect_ack(PUBACK if qos == 1 else PUBREC, packet_id)
    if qos == 2:
        for packet_id in packet_ids:
            client.send(Ack(PUBREL, packet_id))
        for packet_id in packet_ids:
            client.expect_ack(PUBCOMP, packet_id)


def publish(client: RawClient, name: str, first: int) -> None:
    send(client, name, first)
    acknowledged(client, first)


def take(service: Listener, **last: int) -> dict[str, list[int]]:
    """What comes until the number *last* of each publisher has come: numbers by publisher."""
    found: dict[str, list[int]] = {name: [] for name in last}
    while not all(number in found[name] for name, number in last.items()):
        message = service.take()
        found[message.topic.removeprefix("readings/")].append(int(message.payload))
    return found


def once(numbers: list[int]) -> list[int]:
    """*numbers* without those that came a second time: at QoS 1, what was not acknowledged comes again."""
    return [*dict.fromkeys(numbers)]


@each_program
def test_a_service_gets_what_was_published_at_all_workers_while_it_was_away(
    start_node: StartNode, listen: Listen, program: Program
) -> None:
    """It would lose messages with its connection, or with the worker that has its session."""
    weir = start_node(2, **SETTINGS)
    service = listen(weir, program, 1)
    home = facts(weir, SERVICE)
    assert "application" == home["kind"]
    here, there = publisher_at(weir, home["worker"]), publisher_at(weir, 1 - home["worker"])
    publish(here, "a", 0)
    publish(there, "b", 0)
    assert {"a": [*range(COUNT)], "b": [*range(COUNT)]} == take(service, a=COUNT - 1, b=COUNT - 1)
    service.die()
    publish(here, "a", COUNT)
    publish(there, "b", COUNT)
    pid = weir.pids[home["worker"]]
    os.kill(pid, signal.SIGKILL)
    weir.wait_for("worker_died")
    weir.wait_until(lambda: node.serves(weir.control) and pid not in weir.pids, "serve again")
    publish(there, "b", 2 * COUNT)

    service = listen(weir, program, 1)
    found = take(service, a=2 * COUNT - 1, b=3 * COUNT - 1)
    service.leave()
    for name, last in (("a", 2 * COUNT), ("b", 3 * COUNT)):
        assert [*range(COUNT, last)] == [number for number in once(found[name]) if number >= COUNT]


def why(weir: Node, client_id: str) -> dict[str, Any]:
    told: dict[str, Any] = node.ask(weir.control, "why", client=client_id)
    return told


def test_a_log_that_fails_is_logged_and_shown_until_it_does_not(start_node: StartNode, listen: Listen) -> None:
    """Nobody would know why the service gets nothing, and why those wait who publish for it."""
    weir = start_node(2, **SETTINGS)
    service = listen(weir, PROGRAMS["paho"], 1)
    elsewhere = 1 - facts(weir, SERVICE)["worker"]
    publisher = publisher_at(weir, elsewhere)
    publish(publisher, "a", 0)
    head = f"weir:log:{{weir.msg.app.{SERVICE}/0}}:head"
    with redis.Redis(unix_socket_path=str(weir.folder / "node" / "redis" / "redis.sock")) as server:
        server.rename(head, "aside")
        server.set(head, "damaged")
        send(publisher, "a", COUNT)
        failed = weir.wait_for("log_partition_failed")
        weir.wait_until(lambda: why(weir, SERVICE)["log"]["trouble"], "say what is wrong")
        told = " ".join(explain(cast(Facts, why(weir, f"publisher-{elsewhere}"))))
        shown = cli("status", "--folder", str(weir.folder / "node")).stdout
        server.delete(head)
        server.rename("aside", head)
    acknowledged(publisher, COUNT)
    weir.wait_for("log_partition_recovered")
    weir.wait_until(lambda: not why(weir, SERVICE)["log"]["trouble"], "say that all is well")

    assert (f"weir.msg.app.{SERVICE}", 0, 1) == (failed["topic"], failed["partition"], failed["failing"])
    assert "publishes of it have durable receivers and no acknowledgement yet" in told
    assert f"is in trouble: nothing can be appended to parts of the log (weir.msg.app.{SERVICE}/0: " in told
    assert f"nothing can be appended to weir.msg.app.{SERVICE}/0" in shown
    assert {"a": [*range(2 * COUNT)]} == take(service, a=2 * COUNT - 1)
    service.leave()


@each_program
@pytest.mark.parametrize("qos", [1, 2])
def test_a_service_misses_nothing_when_the_carrier_is_killed(
    start_node: StartNode, listen: Listen, program: Program, qos: int
) -> None:
    """What was acknowledged would be lost with the carrier, or come twice from the next one."""
    weir = start_node(2, **SETTINGS)
    service = listen(weir, program, qos)
    clients = {"a": publisher_at(weir, 0), "b": publisher_at(weir, 1)}
    rounds = 3
    for number in range(rounds):
        first = 2 * COUNT * number
        for name, client in clients.items():
            send(client, name, first, qos=qos)
        os.kill(node.status(weir.control)["carrier"]["pid"], signal.SIGKILL)
        for name, client in clients.items():
            send(client, name, first + COUNT, qos=qos)
        weir.wait_for("carrier_died", number + 1)
        for client in clients.values():
            acknowledged(client, first, 2 * COUNT, qos)
        weir.wait_for("carrier_ready", number + 2)

    last = 2 * COUNT * rounds
    assert {"a": [*range(last)], "b": [*range(last)]} == take(service, a=last - 1, b=last - 1)
    service.leave()
    assert [] == weir.lines("worker_died")


def test_services_that_share_a_filter_get_each_message_once_whatever_is_killed(start_node: StartNode) -> None:
    """A service would miss what another one was to do, or do it once more."""
    weir = start_node(2, **SETTINGS)
    members = [weir.client(f"service{number}", properties={SESSION_EXPIRY_INTERVAL: 3600}) for number in (1, 2, 3)]
    for member in members:
        member.subscribe("$share/group/readings/#", qos=2)
    publisher = publisher_at(weir, 0)
    send(publisher, "a", 0, qos=2)
    os.kill(node.status(weir.control)["carrier"]["pid"], signal.SIGKILL)
    acknowledged(publisher, 0, qos=2)
    weir.wait_for("carrier_ready", 2)
    gone = members.pop()
    gone.close()  # others have its work
    for number in range(COUNT):
        publisher.publish(f"readings/{number}", b"%d" % (COUNT + number), qos=1)
    found = read_both(members, {*range(COUNT, 2 * COUNT)})

    assert set(range(COUNT, 2 * COUNT)) <= set(found)
    assert len(found) == len(set(found))
    shown = cli("applications", "show", "service1", "--folder", str(weir.folder / "node")).stdout
    assert "$share/group/readings/#" in shown and "of 12 partitions" in shown


def read_both(members: list[RawClient], wanted: set[int]) -> list[int]:
    """The numbers that the members get, until all that are *wanted* have come."""
    found: list[int] = []
    sockets = {cast(socket.socket, member.socket): member for member in members}
    while not wanted <= set(found):
        readable, _, _ = select.select(list(sockets), [], [], 10.0)
        assert readable, f"nothing comes any more, and {sorted(wanted - set(found))} are missing"
        for member in [sockets[each] for each in readable]:
            found.append(int(member.take().payload))
            while member.has_more():
                found.append(int(member.take().payload))
    return found
