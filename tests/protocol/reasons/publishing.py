# How publishes are held back, refused and dropped before anybody gets them.
from functools import partial
from typing import Final

from broker.config.schema import ClusterQuota, Config, Limits, Overload, Quotas, QuotaScope, Retained
from broker.mqtt.packets import V5, V311, Connect, Publish
from broker.reasons import CloseReason, DropReason, PauseReason, PublishRefusal
from tests.cluster.talk import subscribed
from tests.inprocess import Broker, Client
from tests.protocol.reasons.stage import SCENARIOS, Seen, Stage, happens, heard, overload
from tests.protocol.talk import subscribe

LARGE: Final = bytes(256 * 1024)  # so large that bytes close a gate, and not their number
MANY: Final = 200
WAIT: Final = 1.0  # seconds

SESSION_MESSAGES: Final = Quotas(reserve=0.0, session=QuotaScope(incoming_messages="1:60"))
SESSION_BYTES: Final = Quotas(reserve=0.0, session=QuotaScope(incoming_bytes="1MiB:3600"))
TENANT_MESSAGES: Final = Quotas(reserve=0.0, tenant_of="client-prefix:-", tenant=QuotaScope(incoming_messages="1:60"))
TENANT_BYTES: Final = Quotas(reserve=0.0, tenant_of="client-prefix:-", tenant=QuotaScope(incoming_bytes="1MiB:3600"))
CLUSTER_MESSAGES: Final = Quotas(reserve=0.0, cluster=ClusterQuota(incoming_messages="1:60"))
CLUSTER_BYTES: Final = Quotas(reserve=0.0, cluster=ClusterQuota(incoming_bytes="1MiB:3600"))
CLUSTER_TOTAL: Final = Quotas(reserve=0.0, cluster=ClusterQuota(total_messages="1:60"))

QUOTAS: Final = {
    "QUOTA_SESSION_MESSAGES": SESSION_MESSAGES,
    "QUOTA_SESSION_BYTES": SESSION_BYTES,
    "QUOTA_TENANT_MESSAGES": TENANT_MESSAGES,
    "QUOTA_TENANT_BYTES": TENANT_BYTES,
    "QUOTA_CLUSTER_MESSAGES": CLUSTER_MESSAGES,
    "QUOTA_CLUSTER_BYTES": CLUSTER_BYTES,
    "QUOTA_CLUSTER_TOTAL": CLUSTER_TOTAL,
}


def over_quota(quotas: Quotas, version: int, qos: int, stage: Stage) -> Seen:
    """A client publishes twice what it may: one message, or nearly a MiB."""
    broker = stage.brokers(Config(quotas=quotas))
    client = broker.connect("them-phone", version)
    for number in (1, 2):
        client.send(Publish(b"a", bytes(900_000), qos, packet_id=number if qos else 0))
        broker.settle()
    return Seen([broker], "them-phone", heard(client))


for name, quotas in QUOTAS.items():
    SCENARIOS[DropReason[name]] = partial(over_quota, quotas, V5, 0)
    SCENARIOS[PauseReason[name]] = partial(over_quota, quotas, V311, 1)
    SCENARIOS[PublishRefusal[name]] = partial(over_quota, quotas, V5, 1)


@happens(PauseReason.QUOTA_ASKED)
def asking_for_its_share(stage: Stage) -> Seen:
    broker = stage.with_redis(Config(quotas=CLUSTER_MESSAGES))
    client = broker.connect("phone", V5)
    stage.stop_redis(broker)
    client.send(Publish(b"a", b"", 1, packet_id=1))
    return Seen([broker], "phone", heard(client))


@happens(PauseReason.CREDITS)
def out_of_credits(stage: Stage) -> Seen:
    broker = stage.brokers()
    client = broker.connect("phone")
    overload(broker)
    client.post(*[Publish(b"a", b"", 1, packet_id=number + 1) for number in range(10_000)])
    broker.settle()
    return Seen([broker], "phone", heard(client))


@happens(PauseReason.CONNECT)
def waiting_to_be_let_in(stage: Stage) -> Seen:
    broker = stage.brokers(Config(overload=Overload(connects_per_second=1, connect_burst=1)))
    broker.connect("early")
    late = broker.open(V5)
    late.send(Connect(V5, "phone"))
    return Seen([broker], "phone", heard(late))


def at_a_gate(stage: Stage, version: int, qos: int, wait: float = 30.0) -> tuple[list[Broker], Client]:
    """A client that publishes more than a worker which stands still may have before it."""
    node = stage.nodes(2, Config(overload=Overload(wait=wait)))
    one, two = node
    subscribed(one.connect("subscriber", V5), "a")
    client = two.connect("phone", version)
    one.stopped = True
    client.post(*[Publish(b"a", LARGE, qos, packet_id=number + 1 if qos else 0) for number in range(MANY)])
    two.settle()
    return [one, two], client


@happens(PauseReason.GATE)
def held_by_a_gate(stage: Stage) -> Seen:
    workers, client = at_a_gate(stage, V311, 1)
    return Seen(workers, "phone", heard(client))


def gate_timeout(version: int, qos: int, stage: Stage) -> Seen:
    workers, client = at_a_gate(stage, version, qos, WAIT)
    workers[1].advance(WAIT + 0.2)
    return Seen(workers, "phone", heard(client)[:1])  # the others that wait for as long are told the same


SCENARIOS[DropReason.GATE_TIMEOUT] = partial(gate_timeout, V311, 0)
SCENARIOS[PublishRefusal.GATE_TIMEOUT] = partial(gate_timeout, V5, 1)
SCENARIOS[CloseReason.GATE_TIMEOUT] = partial(gate_timeout, V311, 1)


@happens(DropReason.NOT_AUTHORIZED)
def publishing_where_it_may_not(stage: Stage) -> Seen:
    broker = stage.house()
    client = broker.connect("phone", V5, user="alice", password=b"alice")
    client.send(Publish(b"rooms/vault/1", b"x"))
    return Seen([broker], "phone", heard(client))


@happens(DropReason.RETAINED_PER_CLIENT)
def retaining_more_than_it_may(stage: Stage) -> Seen:
    return _retaining(stage, Config(limits=Limits(retained_per_client=1)))


@happens(DropReason.RETAINED_FULL)
def retaining_more_than_there_is_room_for(stage: Stage) -> Seen:
    return _retaining(stage, Config(retained=Retained(messages=1)))


def _retaining(stage: Stage, config: Config) -> Seen:
    broker = stage.brokers(config)
    client = broker.connect("phone")
    client.send(Publish(b"first", b"x", retain=True), Publish(b"second", b"x", retain=True))
    return Seen([broker], "phone", heard(client))


@happens(DropReason.NO_SHARED_MEMBER)
def a_group_of_which_nobody_can_take_it(stage: Stage) -> Seen:
    broker = stage.brokers()
    member = broker.connect("member", clean_start=False)
    subscribe(member, "$share/group/a")
    member.drop()
    client = broker.connect("phone")
    client.send(Publish(b"a", b"x"))
    return Seen([broker], "phone", heard(client))
