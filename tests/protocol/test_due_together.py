# Much that ends at one time: in pages, with everybody else served in between.
from collections.abc import Callable

from broker.mqtt.packets import V5, Disconnect, PingReq, PingResp, Properties, Subscribe, Wanted
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL
from broker.net.loop import SLICE
from broker.protocol.lifecycle import DUE
from tests.inprocess import Broker

Brokers = Callable[..., Broker]

FILTERS = 10_000
PER_PACKET = 1000


def test_sessions_that_expire_together_end_in_pages(brokers: Brokers) -> None:
    """A fleet that was cut off a week ago would hold the loop when all of its sessions expire."""
    broker = brokers()
    properties: Properties = {SESSION_EXPIRY_INTERVAL: 60}
    for n in range(2 * DUE + 10):
        broker.connect(f"{n}", V5, properties=dict(properties)).drop()
    broker.clock.now += 61
    ended = []
    waits = []
    for _ in range(4):
        waits.append(broker.loop.turn())
        ended.append(broker.sessions_expired)

    assert [DUE, 2 * DUE, 2 * DUE + 10, 2 * DUE + 10] == ended
    assert [0.0, 0.0] == waits[:2]  # the next page is not put off
    assert waits[3] > 0.0
    assert 0 == broker.session_count()


def test_the_end_of_a_large_session_gives_way_to_others(brokers: Brokers) -> None:
    """A client with all the filters it may have would hold the loop each time it leaves."""
    broker = brokers()
    index = broker.routes.index
    client, other = broker.connect("client", V5), broker.connect("other")
    for start in range(0, FILTERS, PER_PACKET):
        client.send(Subscribe(1, [Wanted(b"a/%d" % n) for n in range(start, start + PER_PACKET)]))
        client.receive()
    assert FILTERS == index.subscribers()
    client.send(Disconnect())
    broker.clock.step = SLICE / 8
    while broker.session_count() == 2:
        broker.loop.turn()
    other.send(PingReq())
    while not other.inbox:
        broker.loop.turn()
        other.pull()

    assert [PingResp()] == other.inbox
    assert 0 < index.subscribers() < FILTERS
    again = broker.connect("client", V5)  # is another session, whose filters stay
    again.send(Subscribe(1, [Wanted(b"a/1")]))
    broker.clock.step = 0.0
    broker.settle()
    assert 1 == index.subscribers()
