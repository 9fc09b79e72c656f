# Who may do what: an ACL file held against everything by which a message can reach somebody.
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

import pytest

from broker.auth.passwords import hash_password
from broker.config.schema import Access, Config
from broker.mqtt.packets import (
    PUBACK,
    PUBREC,
    PUBREL,
    V5,
    V31,
    V311,
    Ack,
    ConnAck,
    Connect,
    Publish,
    SubAck,
    Subscribe,
    Wanted,
    Will,
)
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL, WILL_DELAY_INTERVAL
from broker.reasons import CloseReason, DropReason
from tests.inprocess import Broker, Client
from tests.protocol.talk import closed, dropped, payloads, subscribe

Log = list[MutableMapping[str, Any]]
NOT_AUTHORIZED = 0x87
USERS = ("alice", "bob")

RULES = """\
topic read news
user alice
topic readwrite rooms/#
topic deny rooms/vault/#
topic write inbox
user bob
topic read rooms/#
topic read inbox
topic write news
pattern readwrite own/%u/%c/#
"""


class House:
    """A broker with the users alice and bob, whose passwords are their names, and RULES."""

    def __init__(self, brokers: Callable[..., Broker], folder: Path) -> None:
        self.passwords, self.acl = folder / "passwords", folder / "acl"
        hashed = [f"{name}:{hash_password(name.encode(), b'twelve bytes', 1)}" for name in USERS]
        self.passwords.write_text("\n".join(hashed))
        self.acl.write_text(RULES)
        access = Access(
            password_file=str(self.passwords),
            acl_file=str(self.acl),
            allow_anonymous=True,
            exclusive_client_ids=False,  # so that sessions change hands
        )
        self.broker = brokers(Config(access=access))

    def enter(
        self, user: str | None, client_id: str = "", version: int = V5, *, stays: bool = False, will: Will | None = None
    ) -> Client:
        """*user* (None: anonymous) connects; its session *stays*, or ends with the connection."""
        return self.broker.connect(
            client_id or str(user),
            version,
            clean_start=not stays,
            will=will,
            properties={SESSION_EXPIRY_INTERVAL: 1000} if stays and version == V5 else None,
            user=user,
            password=None if user is None else user.encode(),
        )

    def change(self, rules: str) -> None:
        self.acl.write_text(rules)
        self.broker.reload()


@pytest.fixture
def house(brokers: Callable[..., Broker], tmp_path: Path) -> House:
    return House(brokers, tmp_path)


def answers(client: Client) -> list[tuple[int, int]]:
    return [(packet.kind, packet.code) for packet in client.receive() if isinstance(packet, Ack)]


# Publishing.


@pytest.mark.parametrize("version", [V31, V311, V5])
@pytest.mark.parametrize(("qos", "kind"), [(0, 0), (1, PUBACK), (2, PUBREC)])
def test_a_publish_that_is_not_granted_is_refused_as_its_version_can(
    house: House, log: Log, version: int, qos: int, kind: int
) -> None:
    """A message would go where it may not; a 5.0 client not learn it, or a 3.x client send it for ever."""
    bob = house.enter("bob")
    subscribe(bob, "rooms/#")
    alice = house.enter("alice", "phone", version)
    alice.send(Publish(b"rooms/vault/1", b"x", qos, packet_id=7 if qos else 0))
    code = NOT_AUTHORIZED if version == V5 else 0

    assert ([(kind, code)] if qos else []) == answers(alice)
    assert [] == payloads(bob.receive())
    assert {DropReason.NOT_AUTHORIZED: 1} == dropped(house.broker)
    (told,) = [line for line in log if line["event"] == "publish_refused"]
    assert ("phone", "alice", "rooms/vault/1", 1) == tuple(told[key] for key in ("client", "user", "topic", "messages"))
    assert not alice.closed


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_publish_that_is_granted_arrives(house: House, qos: int) -> None:
    """An ACL file would keep out what it lets in."""
    bob = house.enter("bob")
    subscribe(bob, "rooms/#", qos=qos)
    alice = house.enter("alice")
    for number in range(3):
        alice.send(Publish(b"rooms/%d" % number, b"x", qos, packet_id=number + 1 if qos else 0))

    assert [b"x"] * 3 == payloads(bob.receive())
    assert {} == dropped(house.broker)


def test_a_run_that_is_refused_counts_each_message(house: House, log: Log) -> None:
    """A flood to a forbidden topic would be counted once, or get through because it is read in one go."""
    bob = house.enter("bob")
    subscribe(bob, "rooms/#")
    alice = house.enter("alice")
    alice.send(*[Publish(b"rooms/vault/1", b"x")] * 20, *[Publish(b"rooms/2", b"y")] * 2)

    assert [b"y"] * 2 == payloads(bob.receive())
    assert {DropReason.NOT_AUTHORIZED: 20} == dropped(house.broker)
    assert 1 == len([line for line in log if line["event"] == "publish_refused"])


def test_a_retained_message_is_refused_like_any_other(house: House) -> None:
    """Who may not publish could still leave a message there, or delete one."""
    alice, bob = house.enter("alice"), house.enter("bob")
    bob.send(Publish(b"news", b"old", retain=True), Publish(b"rooms/1", b"x", retain=True))
    bob.receive()
    alice.send(Publish(b"news", b"", retain=True), Publish(b"rooms/2", b"y", retain=True))
    alice.receive()

    now = house.broker.clock.now
    found = [house.broker.retained.get(topic, now) for topic in (b"news", b"rooms/1", b"rooms/2")]
    assert [b"old", None, b"y"] == [message and message.payload for message in found]


def test_a_resent_qos_2_message_keeps_its_answer(house: House) -> None:
    """After a reload a client would be told that a message was refused which was delivered [MQTT-4.3.3-10]."""
    alice = house.enter("alice")
    alice.send(Publish(b"rooms/1", b"x", 2, packet_id=7))
    assert [(PUBREC, 0x10)] == answers(alice)
    house.change("user alice\ntopic read rooms/#")
    alice.send(Publish(b"rooms/1", b"x", 2, dup=True, packet_id=7))
    assert [(PUBREC, 0)] == answers(alice)
    alice.send(Ack(PUBREL, 7), Publish(b"rooms/1", b"x", 2, packet_id=7))

    assert (PUBREC, NOT_AUTHORIZED) in answers(alice)


# Wills.


@pytest.mark.parametrize(("version", "code"), [(V31, 5), (V311, 5), (V5, NOT_AUTHORIZED)])
def test_a_will_that_is_not_granted_is_refused_with_its_connect(house: House, version: int, code: int) -> None:
    """A client would learn nothing of it, as it is gone when its will is due."""
    client = house.broker.open(version)
    client.send(Connect(version, "me", True, 0, "alice", b"alice", Will(b"news", b"gone")))

    assert [ConnAck(False, code)] == client.receive()
    assert client.closed
    assert {CloseReason.NOT_AUTHORIZED: 1} == closed(house.broker)
    assert 0 == house.broker.session_count()
    house.enter("bob", "me", version, will=Will(b"news", b"gone"))


def test_a_will_is_held_against_the_rules_of_the_day(house: House, log: Log) -> None:
    """Who lost the right to publish could still do it by dying."""
    listener = house.enter(None, "anonymous")
    subscribe(listener, "news")
    for name, delay in (("now", 0), ("later", 10)):
        will = Will(b"news", name.encode(), properties={WILL_DELAY_INTERVAL: delay})
        house.enter("bob", name, stays=True, will=will).drop()
    assert [b"now"] == payloads(listener.receive())
    house.change("topic read news")
    house.broker.advance(11.0)

    assert [] == payloads(listener.receive())
    assert {DropReason.NOT_AUTHORIZED: 1} == dropped(house.broker)
    assert ["later"] == [line["client"] for line in log if line["event"] == "will_refused"]


# Receiving.


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_who_subscribes_to_all_gets_what_it_may_read(house: House, version: int) -> None:
    """A dashboard would be refused for one topic of many, or see what it must not."""
    bob = house.enter("bob", version=version)
    subscribe(bob, "#", "+/+")
    alice = house.enter("alice", "phone")
    for topic in (b"inbox", b"rooms/1", b"own/alice/phone/x"):
        alice.send(Publish(topic, topic))
    house.enter("bob", "tv").send(Publish(b"own/bob/tv/x", b"own"), Publish(b"news", b"news"))

    assert {b"inbox", b"rooms/1"} == set(payloads(bob.receive()))


@pytest.mark.parametrize(("version", "code"), [(V31, 0x80), (V311, 0x80), (V5, NOT_AUTHORIZED)])
def test_a_filter_of_which_nothing_may_be_read_is_refused_alone(house: House, version: int, code: int) -> None:
    """A client would wait for what never comes; or lose its other filters, too [MQTT-3.9.3-1]."""
    alice = house.enter("alice", "phone", version)
    filters = [b"rooms/#", b"inbox", b"rooms/vault/1", b"$share/g/news", b"own/alice/phone/+", b"own/bob/#", b"$SYS/#"]
    alice.send(Subscribe(1, [Wanted(filter, 1) for filter in filters]))

    assert [SubAck(1, [1, code, code, code, 1, code, code])] == alice.receive()
    assert 5 == house.broker.counters.refused_by_reason["not_authorized"]
    assert 2 == house.broker.routes.statistics()[1]


def test_retained_messages_are_read_by_those_who_may(house: House) -> None:
    """What may not be read as it is published could be read a moment later."""
    house.enter("alice").send(
        *[Publish(topic, topic, retain=True) for topic in (b"rooms/1", b"rooms/2", b"inbox", b"own/alice/alice/x")]
    )
    house.broker.settle()
    bob, anonymous, alice = house.enter("bob"), house.enter(None, "anonymous"), house.enter("alice", "alice 2")

    assert {b"rooms/1", b"rooms/2", b"inbox"} == {message.payload for message in subscribe(bob, "#")}
    assert [] == subscribe(anonymous, "#")
    assert {b"rooms/1", b"rooms/2"} == {message.payload for message in subscribe(alice, "#")}


def test_a_shared_message_goes_to_members_who_may_read_it(house: House) -> None:
    """Half of the messages would go to somebody who may not read them, or to nobody."""
    members = [house.enter("alice", "a"), house.enter("bob", "b")]
    for member in members:
        subscribe(member, "$share/g/#", qos=1)
    house.enter("alice", "sender").send(*[Publish(b"inbox", b"%d" % n, 1, packet_id=n + 1) for n in range(4)])

    assert [0, 4] == [len(payloads(member.receive())) for member in members]


# Sessions that change hands, and rules that change.


def test_a_session_that_another_user_takes_over_reads_what_that_one_may(house: House) -> None:
    """Who comes with another's client id would read on what the former could."""
    bob = house.enter("bob", "device", stays=True)
    subscribe(bob, "inbox", "rooms/#", "+/1", qos=1)
    sender = house.enter("alice", "sender")
    sender.send(Publish(b"inbox", b"1", 1, packet_id=1), Publish(b"rooms/1", b"2", 1, packet_id=2))
    assert [b"1", b"2"] == payloads(bob.receive())
    bob.drop()
    sender.send(Publish(b"inbox", b"3", 1, packet_id=3), Publish(b"rooms/1", b"4", 1, packet_id=4))
    house.broker.settle()
    alice = house.enter("alice", "device", stays=True)
    assert alice.connack.session_present
    sender.send(Publish(b"inbox", b"5", 1, packet_id=5), Publish(b"rooms/1", b"6", 1, packet_id=6))

    assert [b"2", b"4", b"6"] == payloads(alice.receive())
    assert {DropReason.MAY_NOT_READ: 2} == dropped(house.broker)
    alice.drop()
    bob = house.enter("bob", "device", stays=True)
    sender.send(Publish(b"inbox", b"7", 1, packet_id=7))
    assert b"7" in payloads(bob.receive())


def test_a_reload_holds_at_once_for_those_who_are_there(house: House) -> None:
    """What was taken away would be readable and writable until everybody has reconnected."""
    bob, alice = house.enter("bob"), house.enter("alice")
    subscribe(bob, "rooms/#", "inbox")
    alice.send(Publish(b"rooms/1", b"before"), Publish(b"inbox", b"before"))
    assert [b"before"] * 2 == payloads(bob.receive())
    house.change("user bob\ntopic read inbox\nuser alice\ntopic write rooms/1\ntopic write inbox")
    alice.send(Publish(b"rooms/1", b"not readable"), Publish(b"rooms/2", b"not writable"), Publish(b"inbox", b"after"))

    assert [b"after"] == payloads(bob.receive())
    assert {DropReason.NOT_AUTHORIZED: 1} == dropped(house.broker)


def test_what_waited_while_the_rules_changed_is_held_against_the_new_ones(house: House) -> None:
    """A client that was away would still get what it may not read any more."""
    bob = house.enter("bob", "device", stays=True)
    subscribe(bob, "rooms/#", "inbox", qos=1)
    bob.drop()
    alice = house.enter("alice")
    alice.send(Publish(b"inbox", b"1", 1, packet_id=1), Publish(b"rooms/1", b"2", 1, packet_id=2))
    house.broker.settle()
    house.change("user bob\ntopic read inbox")
    bob = house.enter("bob", "device", stays=True)

    assert [b"1"] == payloads(bob.receive())


def test_what_waited_for_a_shared_subscription_goes_to_a_member_who_may_read_it(house: House) -> None:
    """It would be lost with a member that lost its rights, though another could have it [MQTT-4.8.2-4]."""
    bob = house.enter("bob", "device", stays=True)
    subscribe(bob, "$share/g/inbox", qos=1)
    bob.drop()
    house.enter("alice").send(Publish(b"inbox", b"x", 1, packet_id=1))
    house.broker.settle()
    other = house.enter("bob", "other")
    came = subscribe(other, "$share/g/inbox", qos=1)
    successor = house.enter("alice", "device", stays=True)

    assert [b"x"] == payloads([*came, *other.receive()])
    assert [] == payloads(successor.receive())
    assert {} == dropped(house.broker)


def test_who_subscribes_again_is_held_against_the_new_rules(house: House) -> None:
    """A client would be told that it has what it will never get."""
    bob = house.enter("bob")
    subscribe(bob, "inbox")
    house.change("user bob\ntopic read rooms/#")
    bob.send(Subscribe(2, [Wanted(b"inbox"), Wanted(b"rooms/+")]))

    assert [SubAck(2, [NOT_AUTHORIZED, 0])] == bob.receive()


def test_rules_with_a_mistake_leave_the_former_in_force(house: House, log: Log) -> None:
    """A slip of an editor would take everybody's rights, or take away a denial."""
    house.change("user bob\ntopic reed inbox")
    bob, alice = house.enter("bob"), house.enter("alice")
    subscribe(bob, "inbox")
    alice.send(Publish(b"inbox", b"x"), Publish(b"rooms/vault/1", b"x"))

    assert [b"x"] == payloads(bob.receive())
    (error,) = [line for line in log if line["event"] == "reload_failed"]
    assert error["why"].startswith(f"The ACL file {house.acl}, line 2: unknown access 'reed': it must be ")
