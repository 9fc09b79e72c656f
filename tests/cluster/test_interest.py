# Who wants what, told to every worker; what a SUBACK means.
from collections.abc import Callable

from broker.mqtt.packets import V5, PingReq, PingResp, Publish, SubAck, Subscribe, Unsubscribe, Wanted
from broker.routing.filters import FilterIndex
from tests.cluster.talk import payloads, subscribed
from tests.innode import Node

Nodes = Callable[..., Node]


def test_a_suback_waits_until_every_worker_knows(nodes: Nodes) -> None:
    """What is published right after it, at a worker that does not know yet, would be missed."""
    one, _two, three = nodes(3)
    subscriber, publisher = one.connect("subscriber"), three.connect("publisher")
    three.stopped = True
    subscriber.send(Subscribe(1, [Wanted(b"a", 1)]))
    assert [] == subscriber.receive()

    publisher.send(Publish(b"a", b"before it"))
    three.stopped = False
    assert any(isinstance(packet, SubAck) for packet in subscriber.receive())
    publisher.send(Publish(b"a", b"after it"))
    publisher.receive()
    assert [b"after it"] == payloads(subscriber)[-1:]


def test_who_waits_for_its_suback_is_served_in_order_afterwards(nodes: Nodes) -> None:
    """What it sent behind would be lost, or done before."""
    one, two = nodes(2)
    subscriber = one.connect("subscriber")
    two.stopped = True
    subscriber.send(Subscribe(1, [Wanted(b"a", 1)]), PingReq(), Publish(b"a", b"own"))
    assert [] == subscriber.receive()

    two.stopped = False
    suback, pingresp, message = subscriber.receive()
    assert isinstance(suback, SubAck) and isinstance(pingresp, PingResp) and isinstance(message, Publish)


def test_who_goes_while_it_waits_leaves_nothing(nodes: Nodes) -> None:
    """A SUBACK would be written to nobody, or the interest stay."""
    one, two = nodes(2)
    subscriber = one.connect("subscriber")
    two.stopped = True
    subscriber.send(Subscribe(1, [Wanted(b"a", 1)]))
    one.settle()
    subscriber.drop()
    two.stopped = False
    one.settle()

    assert 0 == two.routes._neighbour_filters.filters()
    assert 0 == one.counters.internal_errors


def test_a_worker_that_dies_ends_the_wait(nodes: Nodes) -> None:
    """Nobody could subscribe any more."""
    node = nodes(3)
    one, _two, three = node
    subscriber = one.connect("subscriber")
    three.stopped = True
    subscriber.send(Subscribe(1, [Wanted(b"a", 1)]))
    assert [] == subscriber.receive()
    node.kill(three)

    (suback,) = subscriber.receive()
    assert isinstance(suback, SubAck)


def test_the_interest_of_a_dead_worker_is_withdrawn(nodes: Nodes) -> None:
    """Messages would be written to nobody, for ever, and filters that nobody has stay in memory."""
    node = nodes(2)
    one, two = node
    subscriber, publisher = one.connect("subscriber"), two.connect("publisher", V5)
    subscribed(subscriber, "a", "b/#", "+/c", *[f"f/{n}" for n in range(900)], "$share/g/s")
    publisher.send(Publish(b"b/c", b"1", 1, packet_id=1))
    assert 0 == publisher.receive()[0].code  # type: ignore[union-attr]
    node.kill(one)

    publisher.send(Publish(b"b/c", b"2", 1, packet_id=2), Publish(b"s", b"3", 1, packet_id=3))
    assert [0x10, 0x10] == [answer.code for answer in publisher.receive()]  # type: ignore[union-attr]
    assert 0 == two.routes._neighbour_filters.filters()
    assert [] == list(two.routes.shared_groups())


def test_a_newcomer_learns_what_is_subscribed_to(nodes: Nodes) -> None:
    """Its clients would not be heard by those who were there before it."""
    node = nodes(1)
    (one,) = node
    subscriber = one.connect("subscriber", V5)
    filters = [f"f/{n}" for n in range(700)]
    subscribed(subscriber, *filters, "$share/g/s")
    late = node.start()
    assert late.mesh.complete()
    publisher = late.connect("publisher")
    for topic in (*filters, "s"):
        publisher.send(Publish(topic.encode(), topic.encode()))
    publisher.receive()

    assert sorted([*filters, "s"]) == sorted(payload.decode() for payload in payloads(subscriber))


def test_what_goes_while_a_newcomer_is_told_stays_gone(nodes: Nodes) -> None:
    """The newcomer would send for ever what nobody wants."""
    node = nodes(1)
    (one,) = node
    subscriber = one.connect("subscriber", V5)
    filters = [f"f/{n}" for n in range(700)]
    subscribed(subscriber, *filters)
    one.node = [one]
    late = node.start()  # does not let them settle: `one` alone is turned
    late.stopped = True
    subscriber.send(Unsubscribe(2, [name.encode() for name in filters]))
    one.settle()
    late.stopped = False
    node.settle()

    assert 0 == late.routes._neighbour_filters.filters()


def test_a_storm_of_subscribers_settles(nodes: Nodes) -> None:
    """Confirmations would be lost or counted wrongly, and somebody wait for ever."""
    one, two, three = nodes(3)
    clients = [broker.connect(f"c{n}{broker.shard}") for n in range(20) for broker in (one, two, three)]
    for round_ in range(5):
        for n, client in enumerate(clients):
            client.send(Subscribe(round_ + 1, [Wanted(b"t/%d" % (n % 7 + round_), 0), Wanted(b"t/+", 0)]))
    node_answers = [client.receive() for client in clients]

    assert all(5 == len([a for a in answers if isinstance(a, SubAck)]) for answers in node_answers)
    for client in clients:
        client.drop()
    assert all(0 == broker.routes._neighbour_filters.filters() for broker in (one, two, three))


def test_an_index_knows_its_filters() -> None:
    """A newcomer would be told too much, or too little."""
    from broker.session.subscriber import Subscriber

    index, one = FilterIndex(), Subscriber()
    index.add(b"a", one)
    index.add(b"b/#", one)
    index.remove(b"a", one)

    assert ([b"b/#"], True, False) == (index.names(), index.has(b"b/#"), index.has(b"a"))
