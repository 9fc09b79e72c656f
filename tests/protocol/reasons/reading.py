# How messages are dropped on their way to a reader, and filters refused.
from functools import partial
from itertools import product
from typing import Final

from broker.config.schema import ClusterQuota, Config, Delivery, Limits, Quotas, QuotaScope
from broker.mqtt.packets import V5, V311, Publish, Subscribe, Wanted
from broker.mqtt.properties import MAXIMUM_PACKET_SIZE, MESSAGE_EXPIRY_INTERVAL, SESSION_EXPIRY_INTERVAL
from broker.reasons import CloseReason, DropReason, FilterRefusal, PauseReason
from tests.inprocess import Broker, Client
from tests.insight.operators import Operator
from tests.protocol.reasons.stage import SCENARIOS, Seen, Stage, happens, heard
from tests.protocol.talk import narrow, subscribe

SMALL: Final = Delivery(high_watermark=16 * 1024, low_watermark=8 * 1024)
FEW: Final = Limits(pending=5, queue=5, subscriptions=1, topic_levels=3, topic_bytes=20)


def slow_reader(stage: Stage, qos: int, expiry: int = 0) -> tuple[Broker, Client]:
    """A reader that does not read, to which more was published than may wait for it."""
    broker = stage.brokers(Config(delivery=SMALL, limits=FEW))
    reader = broker.connect("phone", V5, properties={SESSION_EXPIRY_INTERVAL: expiry})
    subscribe(reader, "t", qos=qos)
    narrow(broker)
    reader.reading = False
    publish(broker, *[Publish(b"t", bytes(1000), qos, packet_id=number + 1 if qos else 0) for number in range(60)])
    return broker, reader


def publish(broker: Broker, *messages: Publish) -> None:
    publisher = broker.connect("publisher", V5)
    for message in messages:
        publisher.send(message)
        publisher.receive()
    publisher.drop()


def sleeper(stage: Stage, expiry: int = 1000) -> Broker:
    """A broker with a session that is away, and has subscribed to t."""
    broker = stage.brokers(Config(limits=FEW))
    reader = broker.connect("phone", V5, properties={SESSION_EXPIRY_INTERVAL: expiry})
    subscribe(reader, "t", qos=1)
    reader.drop()
    return broker


@happens(DropReason.NOT_WRITABLE)
def skipped(stage: Stage) -> Seen:
    broker, reader = slow_reader(stage, 0)
    return Seen([broker], "phone", heard(reader))


@happens(DropReason.PENDING_FULL)
def too_much_is_pending(stage: Stage) -> Seen:
    broker, reader = slow_reader(stage, 1)
    return Seen([broker], "phone", heard(reader))


@happens(DropReason.QUEUE_FULL)
def too_much_is_queued(stage: Stage) -> Seen:
    broker, reader = slow_reader(stage, 1, expiry=1000)
    return Seen([broker], "phone", heard(reader))


@happens(DropReason.PURGED)
def an_administrator_removes_what_waits(stage: Stage) -> Seen:
    broker, reader = slow_reader(stage, 1, expiry=1000)
    Operator(broker).ask("queue_purge", {"client": "phone", "filter": "", "after": 0, "last": 0})
    return Seen([broker], "phone", heard(reader))


@happens(DropReason.SHARED_FULL)
def too_much_waits_for_a_group(stage: Stage) -> Seen:
    broker = stage.brokers(Config(limits=Limits(queue=1)))
    reader = broker.connect("phone", clean_start=False)
    subscribe(reader, "$share/group/t", qos=1)
    reader.drop()
    publish(broker, Publish(b"t", b"x", 1, packet_id=1), Publish(b"t", b"y", 1, packet_id=2))
    return Seen([broker], "phone", [])


@happens(DropReason.OFFLINE_QOS0)
def away_at_qos_0(stage: Stage) -> Seen:
    broker = sleeper(stage)
    publish(broker, Publish(b"t", b"x"))
    return Seen([broker], "phone", [])


@happens(DropReason.EXPIRED)
def expired_meanwhile(stage: Stage) -> Seen:
    broker = sleeper(stage)
    publish(broker, Publish(b"t", b"x", 1, packet_id=1, properties={MESSAGE_EXPIRY_INTERVAL: 1}))
    broker.advance(2.0)
    back = broker.connect("phone", V5, clean_start=False)
    return Seen([broker], "phone", heard(back))


@happens(DropReason.TOO_LARGE)
def larger_than_it_takes(stage: Stage) -> Seen:
    broker = stage.brokers()
    reader = broker.connect("phone", V5, properties={MAXIMUM_PACKET_SIZE: 100})
    subscribe(reader, "t", qos=1)
    publish(broker, Publish(b"t", bytes(1000), 1, packet_id=1))
    return Seen([broker], "phone", heard(reader))


@happens(DropReason.SESSION_ENDED)
def ended_while_something_waited(stage: Stage) -> Seen:
    broker = sleeper(stage, expiry=1)
    publish(broker, Publish(b"t", b"x", 1, packet_id=1))
    broker.advance(2.0)
    return Seen([broker], "phone", [])


@happens(DropReason.MAY_NOT_READ)
def not_to_be_read_any_more(stage: Stage) -> Seen:
    broker = stage.house()
    lasting = {"user": "alice", "password": b"alice", "properties": {SESSION_EXPIRY_INTERVAL: 1000}}
    reader = broker.connect("phone", V5, **lasting)  # type: ignore[arg-type]
    subscribe(reader, "rooms/1", qos=1)
    reader.drop()
    publisher = broker.connect("publisher", V5, user="alice", password=b"alice")
    publisher.send(Publish(b"rooms/1", b"x", 1, packet_id=1))
    publisher.receive()
    stage.change_rules(broker, "user alice\ntopic write rooms/1\n")
    back = broker.connect("phone", V5, clean_start=False, **lasting)  # type: ignore[arg-type]
    return Seen([broker], "phone", heard(back))


def refused(stage: Stage, *filters: bytes) -> Seen:
    broker = stage.brokers(Config(limits=FEW))
    client = broker.connect("phone", V5)
    client.send(Subscribe(1, [Wanted(one) for one in filters]))
    return Seen([broker], "phone", heard(client))


@happens(FilterRefusal.INVALID)
def no_filter(stage: Stage) -> Seen:
    return refused(stage, b"a/#/b")


@happens(FilterRefusal.LEVELS)
def a_deep_filter(stage: Stage) -> Seen:
    return refused(stage, b"a/b/c/d")


@happens(FilterRefusal.BYTES)
def a_long_filter(stage: Stage) -> Seen:
    return refused(stage, b"x" * 21)


@happens(FilterRefusal.SHARE_NAME)
def a_long_share_name(stage: Stage) -> Seen:
    return refused(stage, b"$share/" + b"n" * 257 + b"/a")


@happens(FilterRefusal.SUBSCRIPTIONS)
def one_filter_too_many(stage: Stage) -> Seen:
    return refused(stage, b"a", b"b")


@happens(FilterRefusal.PATTERNS)
def filters_in_every_combination(stage: Stage) -> Seen:
    broker = stage.brokers(Config())
    client = broker.connect("phone", V5)
    combinations = [b"/".join(names) for names in product((b"a", b"+"), repeat=10)]
    client.send(Subscribe(1, [Wanted(one + b"/+/+/+/+/+") for one in combinations]))
    return Seen([broker], "phone", list(set(heard(client))))


@happens(FilterRefusal.BUDGET)
def a_filter_without_memory(stage: Stage) -> Seen:
    broker = stage.brokers(Config(limits=Limits(subscription_budget=10_000)))
    client = broker.connect("phone", V5)
    client.send(Subscribe(1, [Wanted(b"a/%d/+" % number) for number in range(8)]))
    return Seen([broker], "phone", list(set(heard(client))))


@happens(FilterRefusal.NOT_AUTHORIZED)
def a_filter_of_others(stage: Stage) -> Seen:
    broker = stage.house()
    client = broker.connect("phone", V5, user="alice", password=b"alice")
    client.send(Subscribe(1, [Wanted(b"rooms/vault/1")]))
    return Seen([broker], "phone", heard(client))


ONE: Final = QuotaScope(outgoing_messages="1:60", subscriptions="1:60")
QUOTAS: Final = {
    "SESSION": Quotas(session=ONE),
    "TENANT": Quotas(tenant_of="client-prefix:-", tenant=ONE),
    "CLUSTER": Quotas(cluster=ClusterQuota(outgoing_messages="1:60", subscriptions="1:60")),
}


def over_outgoing_quota(quotas: Quotas, qos: int, stage: Stage) -> Seen:
    """A client is to be sent more than it may."""
    broker = stage.brokers(Config(quotas=quotas))
    reader = broker.connect("them-phone", V5)
    subscribe(reader, "t", qos=qos)
    publish(broker, *[Publish(b"t", b"", qos, packet_id=number + 1 if qos else 0) for number in range(3)])
    return Seen([broker], "them-phone", heard(reader))


def over_subscription_quota(quotas: Quotas, version: int, stage: Stage) -> Seen:
    """A client subscribes to more than it may."""
    broker = stage.brokers(Config(quotas=quotas))
    client = broker.connect("them-phone", version)
    for number in (1, 2):
        client.send(Subscribe(number, [Wanted(b"%d" % number)]))
        broker.settle()
    return Seen([broker], "them-phone", heard(client))


for scope, quotas in QUOTAS.items():
    SCENARIOS[DropReason[f"QUOTA_{scope}_OUTGOING"]] = partial(over_outgoing_quota, quotas, 0)
    SCENARIOS[PauseReason[f"QUOTA_{scope}_OUTGOING"]] = partial(over_outgoing_quota, quotas, 1)
    SCENARIOS[PauseReason[f"QUOTA_{scope}_SUBSCRIPTIONS"]] = partial(over_subscription_quota, quotas, V311)
    SCENARIOS[FilterRefusal[f"QUOTA_{scope}_SUBSCRIPTIONS"]] = partial(over_subscription_quota, quotas, V5)


def holder(stage: Stage) -> tuple[Broker, Client]:
    """A client that has not acknowledged a message, which fills the memory for messages."""
    broker = stage.brokers(Config(limits=Limits(queue_budget=20_000)))
    reader = broker.connect("phone", V5, properties={SESSION_EXPIRY_INTERVAL: 1000})
    subscribe(reader, "t", qos=1)
    publish(broker, Publish(b"t", bytes(19_000), 1, packet_id=1))
    return broker, reader


@happens(CloseReason.MESSAGE_BUDGET)
def acknowledges_nothing(stage: Stage) -> Seen:
    broker, reader = holder(stage)
    broker.shed()
    return Seen([broker], "phone", heard(reader))


@happens(DropReason.MESSAGE_BUDGET)
def left_without_acknowledging(stage: Stage) -> Seen:
    broker, reader = holder(stage)
    reader.drop()
    broker.shed()
    return Seen([broker], "phone", [])
