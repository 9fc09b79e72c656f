# A node whose sessions are stored, and that is killed, stopped and started: nothing that it has acknowledged is lost.
import os
import signal
from collections.abc import Callable

import pytest
import redis

from broker.mqtt.packets import PUBACK, PUBREC, V5, Ack, ConnAck, Connect, Properties, Publish
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL
from tests.system import node
from tests.system.nodes import Node, StartNode, stop
from tests.system.processes import free_port
from tests.system.raw import RawClient
from tests.system.test_metrics import exposition

pytestmark = pytest.mark.weir_only("a matter of Weir's processes")

LONG: Properties = {SESSION_EXPIRY_INTERVAL: 3600}
MESSAGES = 300


def durable(start_node: StartNode, workers: int = 2, port: int = 0) -> Node:
    return start_node(workers, port, store__durability="process")


def asked(weir: Node) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(weir.folder / "node" / "redis" / "redis.sock"))


def redis_pid(weir: Node) -> int:
    with asked(weir) as server:
        return int(server.info("server")["process_id"])


def memory(weir: Node, most: int) -> None:
    """Let the data of the server take *most* bytes; 0: any number."""
    with asked(weir) as server:
        server.config_set("maxmemory", most)


def back(weir: Node, name: str) -> tuple[RawClient, bool]:
    """The client *name* again, and whether its session was there."""
    client = weir.stranger()
    client.send(Connect(V5, name, False, 0, properties=LONG))
    answer = client.expect(ConnAck)
    assert 0 == answer.code, answer
    return client, answer.session_present


def publish(client: RawClient, count: int, qos: int = 1) -> None:
    """Publish the numbers up to *count*, and wait until the node has them."""
    for number in range(count):
        client.send(Publish(b"topic", b"%d" % number, qos, False, False, number + 1))
    for number in range(count):
        answer = client.expect(Ack)
        assert (PUBACK if qos == 1 else PUBREC, number + 1, 0) == (answer.kind, answer.packet_id, answer.code)


def received(client: RawClient, count: int) -> list[Publish]:
    """The next *count* messages, which are acknowledged."""
    messages = []
    for _ in range(count):
        message = client.expect(Publish)
        client.send(Ack(PUBACK, message.packet_id))
        messages.append(message)
    return messages


def kill_workers(weir: Node) -> Node:
    pids = weir.pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    weir.wait_for("worker_died", len(pids))
    weir.wait_until(lambda: node.serves(weir.control) and not set(pids) & set(weir.pids), "serve again")
    return weir


def kill_redis(weir: Node) -> Node:
    os.kill(redis_pid(weir), signal.SIGKILL)
    weir.wait_for("embedded_redis_started", 2)
    return weir


def kill_all(start_node: StartNode) -> Callable[[Node], Node]:
    def kill(weir: Node) -> Node:
        os.killpg(weir.process.pid, signal.SIGKILL)
        weir.process.wait()
        return durable(start_node, port=weir.port)

    return kill


def restart(start_node: StartNode) -> Callable[[Node], Node]:
    def stop_and_start(weir: Node) -> Node:
        weir.process.terminate()
        weir.process.wait()
        return durable(start_node, port=weir.port)

    return stop_and_start


def test_sessions_of_absent_clients_are_in_redis_alone(start_node: StartNode) -> None:
    """They would fill the memory of the workers, and a node that starts would read all of them before it serves."""
    admin, many = free_port(), 20
    weir = start_node(2, 0, store__durability="process", admin__enabled="true", admin__port=admin)

    def leave(number: int) -> None:
        client, _ = back(weir, f"client-{number}")
        client.subscribe(f"topic/{number}", f"all/{number}/#", qos=1)
        client.close()

    for number in range(many):
        leave(number)
    weir.wait_until(lambda: exposition(admin)["weir_sessions_cold"] == many, "let go of sessions")
    kill_workers(weir)
    weir.wait_for("sessions_adopted", 4)
    assert many == sum(each["cold"] for each in weir.lines("sessions_adopted")[2:])
    publisher = weir.client("publisher")
    for number in range(many):
        publisher.send(Publish(b"topic/%d" % number, b"%d" % number, 1, packet_id=number + 1))
    for number in range(many):
        assert number + 1 == publisher.expect(Ack).packet_id
    for number in range(many):
        client, present = back(weir, f"client-{number}")
        assert present and [b"%d" % number] == [each.payload for each in received(client, 1)]


@pytest.mark.parametrize("what", ["workers", "redis", "all", "restart"])
def test_what_is_acknowledged_comes_in_order_whatever_is_killed(start_node: StartNode, what: str) -> None:
    """Messages for a client that is away would be lost with the process that holds them."""
    kill = {"workers": kill_workers, "redis": kill_redis, "all": kill_all(start_node), "restart": restart(start_node)}
    weir = durable(start_node)
    subscriber, _ = back(weir, "subscriber")
    subscriber.subscribe("topic", qos=1)
    subscriber.close()
    publisher = weir.client("publisher")
    publish(publisher, MESSAGES)
    publisher.close()  # a node that is stopped would wait for it

    weir = kill[what](weir)

    subscriber, present = back(weir, "subscriber")
    assert present
    assert [b"%d" % number for number in range(MESSAGES)] == [each.payload for each in received(subscriber, MESSAGES)]


@pytest.mark.parametrize("what", ["workers", "all"])
def test_what_waits_for_a_group_comes_in_order_whatever_is_killed(start_node: StartNode, what: str) -> None:
    """Messages for a shared subscription whose members are away would be lost with the worker that has its list."""
    weir = durable(start_node)
    member, _ = back(weir, "member")
    member.subscribe("$share/group/topic", qos=1)
    member.close()
    publisher = weir.client("publisher")
    publish(publisher, MESSAGES)
    publisher.close()

    weir = kill_workers(weir) if what == "workers" else kill_all(start_node)(weir)

    member, present = back(weir, "member")
    assert present
    assert [b"%d" % number for number in range(MESSAGES)] == [each.payload for each in received(member, MESSAGES)]


def test_what_was_sent_comes_again_with_its_packet_ids(start_node: StartNode) -> None:
    """A client would take messages for new ones that it has had, or never acknowledge what the node waits for."""
    weir = durable(start_node)
    subscriber, _ = back(weir, "subscriber")
    subscriber.subscribe("topic", qos=1)
    publish(weir.client("publisher"), 20)
    before = [subscriber.expect(Publish) for _ in range(20)]

    kill_workers(weir)

    subscriber, present = back(weir, "subscriber")
    again = [subscriber.expect(Publish) for _ in range(20)]
    assert present
    assert [(each.packet_id, each.payload, True) for each in before] == [
        (each.packet_id, each.payload, each.dup) for each in again
    ]


@pytest.mark.parametrize("how", ["full", "hangs"])
def test_a_store_that_does_not_store_holds_up_what_needs_it_alone(start_node: StartNode, how: str) -> None:
    """All clients would stop with it, or messages be acknowledged that nobody has."""
    weir = durable(start_node, workers=1)
    subscriber, _ = back(weir, "subscriber")
    subscriber.subscribe("topic", qos=1)
    subscriber.close()
    publisher, other = weir.client("publisher"), weir.client("other")
    other.subscribe("other", qos=1)
    pid = redis_pid(weir)
    memory(weir, 1) if how == "full" else stop(pid)

    publisher.send(Publish(b"topic", b"waits", 1, False, False, 1))
    for number in range(100):
        other.send(Publish(b"other", b"%d" % number, 1, False, False, number + 1))
        assert {Ack, Publish} == {type(other.receive()), type(other.receive())}
    if how == "full":
        late = weir.stranger()
        late.send(Connect(V5, "late", False, 0, properties=LONG))
        assert 0x88 == late.expect(ConnAck).code  # server unavailable
        weir.wait_until(lambda: node.status(weir.control)["totals"]["gauges"].get("store_waiting") == 1, "count it")
        memory(weir, 0)
    else:
        os.kill(pid, signal.SIGCONT)

    answer = publisher.expect(Ack)
    assert (PUBACK, 1, 0) == (answer.kind, answer.packet_id, answer.code)
    subscriber, present = back(weir, "subscriber")
    assert present
    assert [b"waits"] == [each.payload for each in received(subscriber, 1)]


def test_a_full_redis_drains_whatever_has_died(start_node: StartNode) -> None:
    """Its clients would get nothing before an operator raises maxmemory, as no worker could read what is stored."""
    weir = durable(start_node)
    subscriber, _ = back(weir, "subscriber")
    subscriber.subscribe("topic", qos=1)
    subscriber.close()
    publish(weir.client("publisher"), MESSAGES)
    memory(weir, 1)
    kill_workers(weir)
    subscriber, present = back(weir, "subscriber")
    assert present
    assert [b"%d" % number for number in range(MESSAGES)] == [each.payload for each in received(subscriber, MESSAGES)]
    with asked(weir) as server:
        weir.wait_until(lambda: not server.keys("*:queue:*"), "remove what was acknowledged")
    memory(weir, 0)
    publish(weir.client("publisher"), 1)

    assert [b"0"] == [each.payload for each in received(subscriber, 1)]
