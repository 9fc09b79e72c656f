# Clients that come back at another worker: two brokers in this process, and the steps that the mesh between them takes.
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.config.schema import Access, Config, Limits
from broker.mqtt.packets import V5, V311, Disconnect, Properties, Publish, Subscribe, Wanted, Will
from broker.mqtt.properties import RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL, WILL_DELAY_INTERVAL
from broker.reasons import CloseReason, DropReason
from broker.session.message import Message
from broker.session.session import Session
from broker.session.transfer.session_export import SessionExport
from broker.session.transfer.session_import import SessionImport
from tests.inprocess import Broker, Client
from tests.protocol.talk import closed, dropped, goodbye, messages, payloads, subscribe

Brokers = Callable[..., Broker]
TAKEN_OVER = 0x8E
MANY = 350  # subscriptions: several pages


def refused() -> None:
    raise AssertionError("only what is stored can be refused")


class Steps:
    """A session that moves between two workers, step by step."""

    def __init__(self, here: Broker, there: Broker, client_id: str = "me") -> None:
        self.here, self.there = here, there
        self.done: list[str] = []
        found = session_of(here, client_id)
        assert found is not None
        self.session: Session = found
        export = here.transfer.begin_export(self.session, here.clock.now)
        assert export is not None
        self.export: SessionExport = export
        self.incoming: SessionImport = there.transfer.begin_import(0.0)
        here.settle()

    def carry(self) -> None:
        while chunk := self.export.next_chunk():
            self.incoming.take(chunk)

    def enrol(self) -> None:
        self.there.transfer.subscribe(self.incoming, lambda: self.done.append("enrolled"))
        self.there.settle()

    def withdraw(self) -> None:
        self.here.transfer.withdraw(self.export, self.there.identity, lambda: self.done.append("withdrawn"), refused)
        self.here.settle()

    def end(self) -> Session:
        self.carry()
        self.here.transfer.finish_export(self.export)
        return self.there.transfer.finish_import(self.incoming)

    def take_back(self) -> None:
        self.here.transfer.cancel_export(self.export, self.here.clock.now, lambda: self.done.append("back"))
        self.here.settle()


def move(here: Broker, there: Broker, client_id: str = "me") -> Session:
    steps = Steps(here, there, client_id)
    steps.carry()
    steps.enrol()
    steps.withdraw()
    session = steps.end()
    assert ["enrolled", "withdrawn"] == steps.done
    return session


def session_of(broker: Broker, client_id: str = "me") -> Session | None:
    return broker.session(client_id)


def come(broker: Broker, *, will: Will | None = None, expiry: int = 60, clean: bool = False, window: int = 9) -> Client:
    properties: Properties = {SESSION_EXPIRY_INTERVAL: expiry, RECEIVE_MAXIMUM: window}
    return broker.connect("me", V5, clean_start=clean, will=will, properties=properties)


def publish(broker: Broker, topic: bytes, *payloads: bytes, qos: int = 1) -> None:
    for payload in payloads:
        message = Message(topic, payload, qos, False, b"", 0.0)
        broker.publishing.publish_will(message, "publisher", None, None, 0.0, broker.clock.now)
    broker.settle()


def nothing_left(broker: Broker) -> bool:
    """Nobody is there, and nothing waits."""
    return (0, 0) == broker.routes.statistics()[1:] and (0, 0, 0, 0, 0) == (
        broker.session_count(),
        broker.queue_budget.used,
        broker.queue_budget.messages,
        broker.connected,
        len(broker.session_lifecycle.replays),
    )


def test_a_client_finds_its_session_at_the_other_worker(brokers: Brokers) -> None:
    """It would be a new one, for who lands on another worker: nothing but the worker may differ."""
    here, there = brokers(), brokers()
    client = come(here, window=1)
    subscribe(client, "a/#", "$share/g/b", qos=2, identifier=5)
    publish(here, b"a/1", b"sent", b"waits", qos=2)
    (first,) = messages(client.receive())
    move(here, there)

    assert TAKEN_OVER == goodbye(client)
    assert {CloseReason.SESSION_TAKEN_OVER: 1} == closed(here)
    assert nothing_left(here)
    back = come(there)
    assert back.connack.session_present
    again, waited = messages(back.receive())
    assert (b"sent", first.packet_id, True) == (again.payload, again.packet_id, again.dup)
    assert (b"waits", again.properties) == (waited.payload, first.properties)
    publish(there, b"b", b"shared")
    assert [b"shared"] == payloads(back.receive())
    assert {} == dropped(here) | dropped(there)


def test_a_client_that_is_away_is_moved_as_well(brokers: Brokers) -> None:
    """Somebody would be told of a takeover, or nothing be moved."""
    here, there = brokers(), brokers()
    client = come(here)
    subscribe(client, "t", qos=1)
    client.drop()
    publish(here, b"t", b"x")
    move(here, there)

    assert [b"x"] == payloads(come(there).receive())
    assert nothing_left(here)


def test_what_comes_while_it_moves_comes_once_and_in_its_order(brokers: Brokers) -> None:
    """A message would be lost, come twice, or be overtaken by its successor."""
    here, there = brokers(), brokers()
    subscribe(come(here), "t", qos=1)
    steps = Steps(here, there)
    publish(here, b"t", b"1", b"2")
    steps.carry()
    publish(here, b"t", b"3")
    steps.enrol()
    publish(there, b"t", b"6")
    publish(here, b"t", b"4")
    steps.carry()
    publish(here, b"t", b"5")
    publish(there, b"t", b"7")
    steps.withdraw()
    publish(here, b"t", b"nobody's")
    steps.end()

    assert [b"1", b"2", b"3", b"4", b"5", b"6", b"7"] == payloads(come(there).receive())
    assert nothing_left(here)


def test_many_subscriptions_move_in_pages(brokers: Brokers) -> None:
    """They would hold the loop of both workers, or some of them be lost between two pages."""
    here, there = brokers(), brokers()
    client = come(here)
    client.send(Subscribe(1, [Wanted(b"t/%d" % number, 1) for number in range(MANY)]))
    client.receive()
    steps = Steps(here, there)
    steps.carry()
    there.transfer.subscribe(steps.incoming, lambda: steps.done.append("enrolled"))
    publish(here, b"t/1", b"late")
    here.transfer.withdraw(steps.export, there.identity, lambda: steps.done.append("withdrawn"), refused)
    steps.carry()

    assert ([], False, False) == (steps.done, steps.export.finished, steps.incoming.complete)
    there.settle()
    here.settle()
    assert ["enrolled", "withdrawn"] == steps.done
    steps.end()
    assert MANY == there.routes.statistics()[1]
    assert nothing_left(here)
    back = come(there)
    publish(there, b"t/0", b"first")
    publish(there, b"t/%d" % (MANY - 1), b"last")
    assert [b"late", b"first", b"last"] == payloads(back.receive())


# The end of a session, and its will.


def watch(*workers: Broker) -> list[Client]:
    watchers = [broker.connect("watcher", V5) for broker in workers]
    for watcher in watchers:
        subscribe(watcher, "wills")
    return watchers


def seen(*watchers: Client) -> list[list[bytes]]:
    return [payloads(watcher.receive()) for watcher in watchers]


def will(delay: int) -> Will:
    return Will(b"wills", b"gone", properties={WILL_DELAY_INTERVAL: delay} if delay else {})


def test_a_will_without_a_delay_is_published_where_the_connection_ended(brokers: Brokers) -> None:
    """It would be published twice, or not at all, when its client is taken over [MQTT-3.1.2-8]."""
    here, there = brokers(), brokers()
    watchers = watch(here, there)
    come(here, will=will(0))
    move(here, there)

    assert [[b"gone"], []] == seen(*watchers)
    here.advance(70)
    there.advance(70)
    assert [[], []] == seen(*watchers)


@pytest.mark.parametrize("away", [0, 4])
def test_a_delayed_will_is_published_at_its_time(brokers: Brokers, away: int) -> None:
    """A move would make it early, late, forgotten or double."""
    here, there = brokers(), brokers()
    watchers = watch(here, there)
    client = come(here, will=will(10))
    if away:
        client.drop()
        for each in (here, there):
            each.advance(away)
    move(here, there)
    left = 10 - away

    for seconds, expected in ((left - 0.2, []), (0.4, [b"gone"]), (60, [])):
        here.advance(seconds)
        there.advance(seconds)
        assert [[], expected] == seen(*watchers)


def test_a_delayed_will_is_taken_back_by_who_comes_in_time(brokers: Brokers) -> None:
    """A client would be reported gone that is here [MQTT-3.1.3-9]."""
    here, there = brokers(), brokers()
    watchers = watch(here, there)
    come(here, will=will(10))
    move(here, there)
    come(there)
    here.advance(20)
    there.advance(20)

    assert [[], []] == seen(*watchers)


@pytest.mark.parametrize("away", [0, 25])
def test_a_session_expires_when_it_would_have(brokers: Brokers, away: int) -> None:
    """It would live for ever, or a second life [MQTT-3.1.2-23]; its will ends with it."""
    here, there = brokers(), brokers()
    watchers = watch(here, there)
    client = come(here, will=will(100))
    subscribe(client, "t", qos=1)
    if away:
        client.drop()
        for each in (here, there):
            each.advance(away)
    move(here, there)
    publish(there, b"t", b"x")
    there.advance(60 - away - 0.2)
    assert session_of(there) is not None
    assert [[], []] == seen(*watchers)
    there.advance(0.4)

    assert session_of(there) is None
    assert [[], [b"gone"]] == seen(*watchers)
    assert {DropReason.SESSION_ENDED: 1} == dropped(there)
    here.advance(100)
    assert (1, 0) == (there.sessions_expired, here.sessions_expired)


def test_a_session_that_ends_with_its_connection_is_not_moved(brokers: Brokers) -> None:
    """What is over would be begun again elsewhere."""
    here = brokers()
    (watcher,) = watch(here)
    client = come(here, expiry=0, will=will(10))
    subscribe(client, "t", qos=1)
    session = session_of(here)
    assert session is not None

    assert here.transfer.begin_export(session, here.clock.now) is None
    assert TAKEN_OVER == goodbye(client)
    assert [[b"gone"]] == seen(watcher)
    assert session_of(here) is None


@pytest.mark.parametrize("expiry", [0, 60])
@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize("delay", [0, 10])
def test_a_client_that_begins_anew_elsewhere_ends_what_it_left(
    brokers: Brokers, expiry: int, away: bool, delay: int
) -> None:
    """Its former session would go on beside the new one, its will be published twice or never [MQTT-3.1.2-8]."""
    here = brokers()
    (watcher,) = watch(here)
    client = come(here, expiry=expiry, will=will(delay))
    subscribe(client, "t", qos=1)
    session = session_of(here)
    assert session is not None
    if away:
        client.drop()
    here.transfer.end_instead(session, here.clock.now)

    assert away or TAKEN_OVER == goodbye(client)
    assert [[b"gone"]] == seen(watcher)
    assert (None, {}) == (session_of(here), session.subscriptions)
    here.advance(70)
    assert [[]] == seen(watcher)


# Retained messages, groups, rights.


def test_retained_messages_that_are_owed_come_from_the_other_worker(brokers: Brokers) -> None:
    """A client would never see the rest of them [MQTT-3.3.1-9]."""
    here, there = brokers(), brokers()
    topics = [b"r/%d" % number for number in range(5)]
    for each in (here, there):
        each.connect("p").send(*[Publish(topic, b"x", 1, True, False, 1) for topic in topics])
        each.settle()
    client = come(here, window=1)
    assert 1 == len(subscribe(client, "r/+", "other", qos=1))
    move(here, there)
    assert 0 == len(here.session_lifecycle.replays)

    received = messages(come(there).receive())
    assert set(topics) == {message.topic for message in received}
    assert len(topics) + 1 == len(received)  # the replay began anew
    assert 0 == len(there.session_lifecycle.replays)


def test_a_group_that_nobody_is_in_loses_what_waits_with_a_count(brokers: Brokers) -> None:
    """A message of a group that is no more would fail the worker, or vanish without a word."""
    here, there = brokers(), brokers()  # which do not know of each other
    client = come(here)
    subscribe(client, "$share/g/t", qos=1)
    client.drop()
    publish(here, b"t", b"x")
    move(here, there)
    here.settle()

    assert {DropReason.NO_SHARED_MEMBER: 1} == dropped(here)
    assert (0, 0) == (here.queue_budget.messages, there.queue_budget.messages)


def test_rights_are_those_of_the_worker_where_it_comes(brokers: Brokers, tmp_path: Path) -> None:
    """A client would be sent what the rules have forbidden since: its session was judged by another worker."""
    rules = tmp_path / "acl"
    rules.write_text("topic read #\ntopic write #\n")
    config = Config(access=Access(acl_file=str(rules), allow_anonymous=True))
    here = brokers(config)
    rules.write_text("topic read open\ntopic write #\n")
    there = brokers(config)
    client = come(here)
    subscribe(client, "open", "secret", qos=1)
    client.drop()
    publish(here, b"secret", b"s")
    publish(here, b"open", b"o")
    move(here, there)
    back = come(there)
    publish(there, b"secret", b"s")
    publish(there, b"open", b"p")

    assert [b"o", b"p"] == payloads(back.receive())
    assert {DropReason.MAY_NOT_READ: 1} == dropped(there)


# When the other worker dies.


@pytest.mark.parametrize("stage", ["export", "carried", "withdrawing", "withdrawn"])
@pytest.mark.parametrize("count", [2, MANY])
def test_a_session_that_is_not_taken_stays(brokers: Brokers, stage: str, count: int) -> None:
    """A worker that dies would take along sessions that were not even its own."""
    here, there = brokers(), brokers()
    (watcher,) = watch(here)
    client = come(here, will=will(10))
    client.send(Subscribe(1, [Wanted(b"t/%d" % number, 1) for number in range(count)]))
    client.receive()
    steps = Steps(here, there)
    publish(here, b"t/0", b"1")
    if stage != "export":
        steps.carry()
    if stage == "withdrawing":
        here.transfer.withdraw(steps.export, there.identity, lambda: steps.done.append("withdrawn"), refused)
    if stage == "withdrawn":
        steps.withdraw()
    steps.take_back()

    assert "back" == steps.done[-1]
    assert count + 1 == here.routes.statistics()[1]
    here.advance(10.2)
    assert [[b"gone"]] == seen(watcher)
    back = come(here)
    assert back.connack.session_present
    publish(here, b"t/0", b"2")
    publish(here, b"t/%d" % (count - 1), b"3")
    assert [b"1", b"2", b"3"] == payloads(back.receive())
    assert 0 == here.queue_budget.messages
    back.send(Disconnect())
    back.receive()
    here.advance(60.2)
    assert session_of(here) is None


@pytest.mark.parametrize("count", [2, MANY])
def test_a_session_that_is_not_taken_makes_way_for_a_newer_one(brokers: Brokers, count: int) -> None:
    """Its client's new session would be nobody's: subscribed, and found by no one."""
    here, there = brokers(), brokers()
    client = come(here)
    client.send(Subscribe(1, [Wanted(b"t/%d" % number, 1) for number in range(count)]))
    client.receive()
    steps = Steps(here, there)
    newer = come(here)
    subscribe(newer, "new", qos=1)
    steps.take_back()

    assert ["back"] == steps.done and steps.session.ended
    assert session_of(here) is not steps.session
    assert 1 == here.routes.statistics()[1]
    publish(here, b"new", b"x")
    assert [b"x"] == payloads(newer.receive())


@pytest.mark.parametrize("count", [2, MANY])
@pytest.mark.parametrize("enrolled", [False, True])
def test_a_session_that_will_not_be_whole_leaves_nothing(brokers: Brokers, enrolled: bool, count: int) -> None:
    """A worker would hold what nobody will ever ask for."""
    here, there = brokers(), brokers()
    client = come(here)
    client.send(Subscribe(1, [Wanted(b"t/%d" % number, 1) for number in range(count)]))
    client.receive()
    steps = Steps(here, there)
    publish(here, b"t/0", b"1")
    steps.carry()
    there.transfer.subscribe(steps.incoming, lambda: None)
    if enrolled:
        publish(there, b"t/0", b"2")
    there.transfer.cancel_import(steps.incoming)
    there.settle()

    assert nothing_left(there)
    assert not there.hub.work(0.0)


def test_a_session_that_goes_away_before_its_first_page_leaves_nothing(brokers: Brokers) -> None:
    """A worker that dies with its first words would be an error in ours."""
    there = brokers()
    there.transfer.cancel_import(there.transfer.begin_import(0.0))

    assert nothing_left(there)


def test_a_worker_with_less_room_lets_the_oldest_go(brokers: Brokers) -> None:
    """It would hold more than its configuration says, or drop without a word."""
    here, there = brokers(), brokers(Config(limits=Limits(queue=2)))
    client = come(here)
    subscribe(client, "t", qos=1)
    client.drop()
    publish(here, b"t", b"1", b"2", b"3")
    move(here, there)

    assert [b"2", b"3"] == payloads(come(there).receive())
    assert {DropReason.QUEUE_FULL: 1} == dropped(there)
    assert {} == dropped(here)


def test_a_client_of_3_1_1_is_moved_as_any(brokers: Brokers) -> None:
    """Half of the clients there are would begin anew: they hear no reason, and come without clean session."""
    here, there = brokers(), brokers()
    client = here.connect("me", V311, clean_start=False)
    subscribe(client, "t", qos=1)
    publish(here, b"t", b"x")
    assert [b"x"] == payloads(client.receive())
    move(here, there)

    assert goodbye(client) is None
    back = there.connect("me", V311, clean_start=False)
    assert back.connack.session_present
    (again,) = messages(back.receive())
    assert (b"x", True) == (again.payload, again.dup)
