# What operators see of the logs of APPLICATION clients, and how they have one go on elsewhere in its log.
from collections.abc import Iterator
from typing import Any

import pytest

from broker.insight.application_requests import LATE
from broker.insight.pending_answers import PATIENCE, RequestRefused
from broker.mqtt.packets import PUBACK, PUBCOMP, PUBREC, V5, Ack, Publish, Subscribe, Wanted
from broker.store.durable.log_topics import topic_of
from tests.cluster.durable_node import StartRedis
from tests.cluster.test_applications import LASTING, MOST, Logged, numbers, publish, read_all, received, subscriber
from tests.inprocess import Client
from tests.insight.operators import Operator
from tests.store.durable.model_log import DAMAGED

pytestmark = [pytest.mark.system, pytest.mark.interpreted]  # a real Redis

NAME = "service1"
TOPIC = topic_of(NAME.encode())


@pytest.fixture
def node(start_redis: StartRedis) -> Iterator[Logged]:
    """A service that has subscribed, and left."""
    made = Logged(start_redis())
    subscriber(made.worker, NAME).drop()
    made.settle()
    yield made
    made.worker.close()


def ask(node: Logged, what: str, **arguments: object) -> Any:
    """The answer, or the sentence that says why there is none."""
    try:
        outcomes = Operator(node.worker).begin(what, arguments)
    except RequestRefused as refusal:
        return str(refusal)
    node.settle()
    ((result, error),) = outcomes
    return error or result


def listed(node: Logged, match: str = "") -> dict[str, Any]:
    page = ask(node, "applications", position=0, match=match)
    assert page["next"] is None
    return {one["client"]: one for one in page["applications"]}


def reset(node: Logged, to: str = "", time: float = 0.0) -> Any:
    return ask(node, "application_reset", client=NAME, to=to, time=time)


def back(node: Logged) -> Client:
    client = subscriber(node.worker, NAME)
    assert client.connack.session_present
    return client


def test_the_lag_of_each_application_is_listed(node: Logged) -> None:
    """Nobody could see that a service falls behind before retention deletes what it has not read."""
    other = subscriber(node.worker, "service2")
    device = node.worker.connect("device", V5, clean_start=False, properties=LASTING)
    device.send(Subscribe(1, [Wanted(b"t", 1)]))
    publish(node, b"1")
    publish(node, b"2")

    away, here = listed(node)[NAME], listed(node)["service2"]

    assert [NAME, "service2"] == list(listed(node))
    assert [NAME] == list(listed(node, "e1"))
    assert (False, 0, 2, 2, TOPIC) == tuple(away[key] for key in ("connected", "position", "end", "lag", "topic"))
    assert (True, 2, 0, 2) == tuple(here[key] for key in ("connected", "position", "lag", "inflight"))
    assert [b"1", b"2"] == [payload for payload, _, _ in received(other)]


def test_the_log_is_asked_where_it_ends_once_a_worker_has_died(node: Logged) -> None:
    """The lag would be unknown, or 0, until somebody publishes."""
    publish(node, b"1")
    publish(node, b"2")
    node.kill()

    assert (2, 2) == (listed(node)[NAME]["end"], listed(node)[NAME]["lag"])


def test_the_oldest_message_is_known(node: Logged) -> None:
    """A lag of 3 could be of a second or of six days, a day before retention deletes it."""
    publish(node, b"1")
    for _ in range(30):
        node.worker.advance(1.0)
    publish(node, b"2")

    shown = ask(node, "application", client=NAME)

    assert (2, 0, 7 * 86_400) == tuple(shown[key] for key in ("lag", "first", "retention"))
    assert 30 <= shown["oldest"] <= 35
    assert None is ask(node, "application", client="nobody")


def test_a_record_without_a_time_is_no_error(node: Logged) -> None:
    """The page about a service would fail when its log is damaged, which is when it is looked at."""
    publish(node, b"1")
    node.log.topics[TOPIC].records[0] = DAMAGED

    assert None is ask(node, "application", client=NAME)["oldest"]


def test_a_log_that_does_not_answer_is_said(node: Logged) -> None:
    """The command would wait for ever; and each look leave a reading behind."""
    publish(node, b"1")
    operator = Operator(node.worker)
    outcomes = operator.begin("application", {"client": NAME})
    link, _ = node.links[node.worker]
    link.answer()
    assert 1 == len(link.readings)
    node.worker.advance(PATIENCE + 0.1)
    operator.pending.expire()

    assert [(None, LATE)] == outcomes
    assert [] == link.readings


@pytest.mark.parametrize("qos", [1, 2])
def test_messages_come_again_from_an_earlier_place(node: Logged, qos: int) -> None:
    """A service that has lost its data could not read its week again; or QoS 2 be taken for what it has had."""
    client = back(node)
    publisher = node.worker.connect("durable", V5, properties=LASTING)  # its publishes have tokens
    for number in (1, 2, 3):
        publisher.send(Publish(b"t", b"%d" % number, qos, packet_id=number))
        node.settle()
    for _, packet_id, _ in received(client):
        client.send(*([Ack(PUBACK, packet_id)] if qos == 1 else [Ack(PUBREC, packet_id), Ack(PUBCOMP, packet_id)]))
    node.settle()
    client.drop()
    node.settle()

    assert (3, 0) == tuple(reset(node, "earliest")[key] for key in ("from", "to"))
    node.kill()
    client = back(node)
    node.settle()

    assert [b"1", b"2", b"3"] == [payload for payload, _, _ in received(client)]


def test_a_record_that_was_passed_on_in_part_comes_again_as_a_whole(node: Logged) -> None:
    """Its first messages would be left out."""
    client = back(node)
    publish(node, *numbers(0, 30))
    node.settle()
    assert numbers(0, MOST) == [payload for payload, _, _ in received(client)]
    client.drop()
    node.settle()
    reset(node, "earliest")

    assert numbers(0, MOST) + numbers(0, 30) == read_all(back(node), node.settle)


def test_messages_are_skipped(node: Logged) -> None:
    """A service that comes back after a week could not leave out what is of no use any more."""
    publish(node, *numbers(1, 4))
    publish(node, *numbers(4, 6))
    assert (0, 2) == tuple(reset(node, "latest")[key] for key in ("from", "to"))
    publish(node, b"6")
    node.kill()

    assert [b"6"] == read_all(back(node), node.settle)


def test_reading_goes_on_at_a_time(node: Logged) -> None:
    """Operators know when something went wrong, and no offsets."""
    times = []
    for number in range(1, 20):
        times.append(node.worker.worker.base.wall())
        publish(node, b"%d" % number)
        node.worker.advance(10.0)
    node.log.topics[TOPIC].records[12] = DAMAGED
    node.log.topics[TOPIC].delete(3)

    assert 3 == reset(node, time=times[0])["to"]
    assert 7 == reset(node, time=times[7] - 4.0)["to"]
    assert 19 == reset(node, time=times[-1] + 60.0)["to"]
    assert 15 == reset(node, time=times[14] + 4.0)["to"]

    assert numbers(16, 20) == read_all(back(node), node.settle)


def test_what_waits_in_redis_stays_until_it_is_purged(node: Logged) -> None:
    """It was acknowledged to its publishers; and what the client may have, it must be able to finish."""
    client = back(node)
    publish(node, b"1", b"2")
    node.settle()
    assert 2 == len(received(client))
    client.drop()
    node.settle()

    answer = reset(node, "latest")

    assert (1, 1, 2) == tuple(answer[key] for key in ("from", "to", "passed_to"))
    client = back(node)
    node.settle()
    assert [(b"1", 1, True), (b"2", 2, True)] == received(client)


def test_what_cannot_be_done_is_said(node: Logged) -> None:
    """An operator would believe that it was done."""
    node.worker.connect("device", V5, clean_start=False, properties=LASTING)
    publish(node, b"1")
    assert "The log has the offsets 0 to 1, and not 2." == reset(node, "2")
    assert "is no APPLICATION client" in ask(node, "application_reset", client="device", to="0", time=0.0)
    assert None is ask(node, "application_reset", client="nobody", to="0", time=0.0)
    client = back(node)
    node.settle()
    assert "The client is connected: stop it, and try again." == reset(node, "0")
    assert [b"1"] == [each.payload for each in client.receive() if isinstance(each, Publish)]


def test_a_client_that_comes_meanwhile_is_served_from_where_it_was(node: Logged) -> None:
    """Its reading would be at another place than what is stored, and messages be lost or come twice after a crash."""
    publish(node, b"1")
    operator = Operator(node.worker)
    outcomes = operator.begin("application_reset", {"client": NAME, "to": "latest", "time": 0.0})
    client = back(node)
    node.settle()

    ((result, error),) = outcomes
    assert (None, "The client is connected: stop it, and try again.") == (result, error)
    assert [b"1"] == [payload for payload, _, _ in received(client)]
