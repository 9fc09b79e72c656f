# Leases of partitions of shared logs, on real servers: who gets which, and what becomes of what is saved.
from collections.abc import Callable
from typing import Any, Final, cast

import pytest

from broker.store.durable.lease_scripts import (
    ASKED,
    FREED,
    LEASE,
    SCRIPT,
    LeaseKeys,
    digest_of,
    lease_field,
    read_field,
    read_notice,
)
from broker.store.durable.leases import EPOCH
from broker.store.durable.removals import call_of, in_transaction
from broker.store.redis.keys import Keys
from supervisor.redis_server import RedisServer
from tests.redis_servers import RunningRedis

pytestmark = pytest.mark.system  # real servers

StartRedis = Callable[..., RunningRedis]
KEYS: Final = Keys("weir")
SUBSCRIPTION: Final = b"$share/g/a/#"
GROUP: Final = digest_of(SUBSCRIPTION)
CHANNEL: Final = KEYS.leases(0)
LEASES: Final = LeaseKeys(KEYS, CHANNEL)
FENCE: Final = KEYS.fence(b"worker")
PARTITIONS: Final = 12
LOG: Final = b"identity"
OTHER: Final = b"another"


class Group:
    """A group on a server, and what its members were told."""

    def __init__(self, redis: RunningRedis) -> None:
        self.client = redis.client()
        self._told = self.client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        self._told.subscribe(CHANNEL)
        self._told.get_message(timeout=5.0)

    def call(self, op: str, name: bytes, *words: bytes | int) -> Any:
        keys = LEASES.of(GROUP, self.record(name), b"a/#")
        parts = (len(keys), *keys, op, digest_of(name), LEASE + GROUP, *words)
        return self.client.execute_command("EVAL", SCRIPT, *parts)  # type: ignore[no-untyped-call]

    def record(self, name: bytes) -> bytes:
        return b"record:" + name

    def subscribe(self, name: bytes) -> None:
        self.client.hset(self.record(name), mapping={b"": b"head", SUBSCRIPTION: b"\1"})

    def join(self, *names: bytes, saved: bytes = b"0") -> None:
        for name in names:
            self.subscribe(name)
            self.call("join", name, SUBSCRIPTION, LOG, *[saved] * PARTITIONS)

    def take(self, name: bytes) -> dict[int, bytes]:
        """The leases of a member that wants its part."""
        answer = self.call("take", name, CHANNEL, GROUP)
        assert 1 == answer[0]
        return dict(zip(answer[1::2], answer[2::2], strict=True))

    def assigned(self, name: bytes, *partitions: int) -> dict[int, bytes]:
        """The leases of a member to which Kafka has assigned *partitions*."""
        answer = self.call("take", name, CHANNEL, GROUP, *partitions)
        assert 1 == answer[0]
        return dict(zip(answer[1::2], answer[2::2], strict=True))

    def release(self, name: bytes, partition: int, known: int = 0, full: bool = False) -> None:
        words = LEASES.release(self.record(name), name, GROUP, partition)
        command = call_of([words], FENCE, known, b"number", 1) if full else in_transaction(words, FENCE, known)
        parts = parsed(command)[1:]
        self.client.execute_command("EVAL", *parts)  # type: ignore[no-untyped-call]

    def told(self) -> list[tuple[bytes, bytes, bytes, list[int]] | None]:
        """The notices since the last call."""
        notices = []
        while (message := self._told.get_message(timeout=0.2)) is not None:
            notices.append(read_notice(cast(bytes, message["data"])))
        return notices

    def balance(self, *names: bytes) -> dict[bytes, set[int]]:
        """Have the members do what they are asked, until nobody is asked any more; what each has then."""
        self.told()
        for _ in range(20):
            for name in names:
                self.take(name)
            notices = [notice for notice in self.told() if notice is not None and notice[0] == ASKED]
            for _, _, member, partitions in notices:
                (name,) = [each for each in names if digest_of(each) == member]
                for partition in partitions:
                    self.release(name, partition)
            if not notices:
                return {name: set(self.take(name)) for name in names}
        raise AssertionError("it does not come to rest")


def parsed(command: bytes) -> list[bytes]:
    """The words of a packed command."""
    words = []
    at = command.index(b"\r\n") + 2
    while at < len(command):
        end = command.index(b"\r\n", at)
        length = int(command[at + 1 : end])
        words.append(command[end + 2 : end + 2 + length])
        at = end + 2 + length + 2
    return words


@pytest.fixture
def group(start_redis: StartRedis, every_server: RedisServer) -> Group:
    return Group(start_redis(every_server))


def test_each_partition_has_one_reader_and_all_have_as_many(group: Group) -> None:
    """A message would come to two members, or to none; or one member do the work of all."""
    names = [b"%d" % number for number in range(5)]
    for count in (1, 2, 3, 5):
        group.join(*names[:count])
        held = group.balance(*names[:count])
        assert sorted(range(PARTITIONS)) == sorted(partition for each in held.values() for partition in each)
        assert {PARTITIONS // count, -(-PARTITIONS // count)} >= {len(each) for each in held.values()}


def test_what_a_member_releases_goes_to_the_others(group: Group) -> None:
    """A partition would wait for a member that is stuck, while others have nothing to do."""
    names = [b"a", b"b", b"c"]
    group.join(*names)
    held = group.balance(*names)
    group.told()
    group.call("rest", b"a", CHANNEL, GROUP)
    for partition in held[b"a"]:
        group.release(b"a", partition)
    assert [(FREED, GROUP, b"", [])] * 5 == group.told()

    assert [6, 6] == [len(each) for each in group.balance(b"b", b"c").values()]


def test_more_members_than_partitions(group: Group) -> None:
    """Those without a partition would take those of others, in turns and without end."""
    names = [b"%d" % number for number in range(PARTITIONS + 3)]
    group.join(*names)
    held = group.balance(*names)

    assert [0] * 3 + [1] * PARTITIONS == sorted(len(each) for each in held.values())


@pytest.mark.parametrize("full", [False, True])
def test_the_next_reader_goes_on_where_the_last_one_was(group: Group, full: bool) -> None:
    """Messages would be passed on twice, or never."""
    group.join(b"a")
    lease = group.take(b"a")[3]
    assert b"0" == lease[EPOCH:]
    group.client.hset(group.record(b"a"), lease_field(GROUP, 3), lease[:EPOCH] + b"far")
    group.release(b"a", 3, full=full)
    group.call("rest", b"a", CHANNEL, GROUP)
    group.join(b"b", saved=b"new")
    again = group.take(b"b")[3]

    assert b"far" == again[EPOCH:]
    assert again[:EPOCH] > lease[:EPOCH]
    assert not group.client.hexists(group.record(b"a"), lease_field(GROUP, 3))


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("fenced", [b"a", b""])
def test_who_lost_the_session_releases_nothing(group: Group, full: bool, fenced: bytes) -> None:
    """The partition would be read from where messages were stored that nobody will ever read."""
    group.join(b"a")
    lease = group.take(b"a")[3]
    group.client.rpush(FENCE, b"other", fenced)
    group.release(b"a", 3, known=0, full=full)
    assert lease == group.client.hget(group.record(b"a"), lease_field(GROUP, 3))
    group.release(b"a", 3, known=2, full=full)

    assert group.client.hget(group.record(b"a"), lease_field(GROUP, 3)) is None


def test_a_lease_that_another_member_has_by_now_is_not_released(group: Group) -> None:
    """Two would read one partition."""
    group.join(b"a", b"b")
    former = group.take(b"a")[3]
    group.release(b"a", 3)
    group.client.hset(group.record(b"a"), lease_field(GROUP, 3), former)
    group.call("rest", b"a", CHANNEL, GROUP)
    assert 3 in group.take(b"b")
    group.release(b"a", 3)

    assert 3 in group.take(b"b")


def test_a_group_that_has_ended_begins_anew(group: Group) -> None:
    """It would get what was published while it did not exist; or what is stored of it stay for good."""
    group.join(b"a", saved=b"early")
    group.client.srem(LEASES.members(GROUP), digest_of(b"a"))
    assert 2 == group.call("sweep", b"a"), "it was the last one of its filter"
    group.join(b"a", saved=b"late")
    assert 0 == group.call("sweep", b"a")
    group.client.srem(LEASES.members(GROUP), digest_of(b"a"))
    group.join(b"b", b"a", saved=b"later")

    assert {b"later"} == {lease[EPOCH:] for lease in group.take(b"a").values()}


def test_who_is_no_member_or_is_not_stored_takes_nothing(group: Group) -> None:
    """Its lease would be that of nobody, and the partition never be read."""
    group.join(b"a")
    group.client.hset(group.record(b"b"), b"", b"head")
    assert [-1] == group.call("take", b"b", CHANNEL, GROUP)
    group.client.delete(group.record(b"a"))

    assert [0] == group.call("take", b"a", CHANNEL, GROUP)


def test_leases_that_redis_has_lost_are_restored(group: Group) -> None:
    """The partitions would be read by nobody, or by two."""
    group.join(b"a", b"b")
    group.balance(b"a", b"b")
    held = {name: group.take(name) for name in (b"a", b"b")}
    group.client.flushall()
    for name in (b"a", b"b"):
        words = [word for partition, lease in held[name].items() for word in (partition, lease)]
        assert [] == group.call("restore", name, *words)
    group.join(b"a", b"b", saved=b"later")

    assert held == {name: group.take(name) for name in (b"a", b"b")}
    other = next(iter(held[b"b"]))
    assert [b"%d" % other] == group.call("restore", b"a", other, held[b"a"][next(iter(held[b"a"]))])


def test_a_call_whose_answer_was_lost_is_made_again(group: Group) -> None:
    """A member would have partitions in Redis that it does not know of."""
    group.join(b"a")

    assert group.take(b"a") == group.take(b"a")


def test_names_and_notices() -> None:
    """What anybody may write into the channel would end a worker."""
    assert (GROUP, 11) == read_field(lease_field(GROUP, 11))
    assert (ASKED, GROUP, digest_of(b"a"), [3, 4]) == read_notice(ASKED + GROUP + digest_of(b"a") + b"3 4")
    for notice in (b"", b"F", FREED + GROUP + b"x", ASKED + GROUP, ASKED + GROUP + GROUP, b"?" + GROUP):
        assert read_notice(notice) is None
    assert read_notice(ASKED + GROUP + GROUP + b"1 x") is None


def test_who_joins_a_group_that_is_there_needs_no_places(group: Group) -> None:
    """Each member that there is at the start of a worker would have the log asked where it ends."""
    group.subscribe(b"a")
    group.subscribe(b"b")
    assert 0 == group.call("join", b"a", SUBSCRIPTION)
    assert not group.client.exists(LEASES.members(GROUP))
    group.join(b"a")

    assert 1 == group.call("join", b"b", SUBSCRIPTION)
    assert 2 == group.client.scard(LEASES.members(GROUP))


def test_a_lease_that_comes_too_late_is_given_back(group: Group) -> None:
    """The client has gone meanwhile, and the partition would wait for it."""
    group.join(b"a", b"b")
    lease = group.take(b"a")[3]
    group.call("rest", b"a", CHANNEL, GROUP)
    group.told()
    group.call("free", b"a", CHANNEL, GROUP, 3, lease)
    assert [(FREED, GROUP, b"", [])] == group.told()
    assert not group.client.hexists(group.record(b"a"), lease_field(GROUP, 3))
    again = group.take(b"b")[3]
    group.call("free", b"a", CHANNEL, GROUP, 3, lease)

    assert again == group.take(b"b")[3]


def test_who_has_not_subscribed_is_no_member(group: Group) -> None:
    """A call that comes late would make a member that nobody removes: the group would never end."""
    group.subscribe(b"a")
    group.client.hdel(group.record(b"a"), SUBSCRIPTION)
    assert -1 == group.call("join", b"a", SUBSCRIPTION, LOG, *[b"0"] * PARTITIONS)
    group.client.delete(group.record(b"a"))
    assert -1 == group.call("join", b"a", SUBSCRIPTION, LOG, *[b"0"] * PARTITIONS)

    assert not group.client.exists(LEASES.members(GROUP), KEYS.group_state(GROUP))


def retire(group: Group, log: bytes) -> int:
    key = LEASES.of_filter(b"a/#")
    words = ("EVAL", SCRIPT, 4, key, key, key, key, "retire", b"", b"", log)
    return cast(int, group.client.execute_command(*words))  # type: ignore[no-untyped-call]


def test_a_topic_is_retired_only_while_no_group_reads_it(group: Group) -> None:
    """Messages of a group would be deleted with its topic."""
    group.join(b"a")
    assert 0 == retire(group, LOG)
    group.client.srem(LEASES.members(GROUP), digest_of(b"a"))
    other = digest_of(b"$share/other/a/#")
    words = ("join", digest_of(b"b"), LEASE + other, b"$share/other/a/#", LOG, *[b"0"] * PARTITIONS)
    group.client.hset(group.record(b"b"), b"$share/other/a/#", b"\1")
    keys = LEASES.of(other, group.record(b"b"), b"a/#")
    assert 1 == group.client.execute_command("EVAL", SCRIPT, 4, *keys, *words)  # type: ignore[no-untyped-call]
    assert 1 == group.call("sweep", b"a"), "there is another group"
    assert 0 == retire(group, LOG)
    group.client.srem(LEASES.members(other), digest_of(b"b"))
    keys = LEASES.of(other, b"", b"a/#")
    assert 2 == group.client.execute_command(  # type: ignore[no-untyped-call]
        "EVAL", SCRIPT, 4, *keys, "sweep", b"", LEASE + other
    )

    assert [1, 1] == [retire(group, LOG), retire(group, LOG)]


def test_no_group_begins_in_a_topic_that_is_retired(group: Group) -> None:
    """A deletion that comes late would take what the group has not read."""
    assert 1 == retire(group, LOG)
    group.subscribe(b"a")
    assert 0 < group.client.ttl(LEASES.of_filter(b"a/#"))
    assert -2 == group.call("join", b"a", SUBSCRIPTION, LOG, *[b"0"] * PARTITIONS)
    assert not group.client.exists(LEASES.members(GROUP), KEYS.group_state(GROUP))
    group.call("keep", b"a")
    assert 1 == group.call("join", b"a", SUBSCRIPTION, LOG, *[b"0"] * PARTITIONS)
    group.client.srem(LEASES.members(GROUP), digest_of(b"a"))
    group.call("sweep", b"a")
    assert 1 == retire(group, LOG)
    assert 1 == group.call("join", b"a", SUBSCRIPTION, OTHER, *[b"0"] * PARTITIONS)

    assert -1 == group.client.ttl(LEASES.of_filter(b"a/#"))
    assert 0 == retire(group, OTHER)


def test_a_member_takes_what_kafka_has_assigned_and_no_other_member_has(group: Group) -> None:
    """Two would read one partition while a group of Kafka changes, or a member what is another's by now."""
    group.join(b"a", b"b")
    first = group.assigned(b"a", *range(9))
    assert {*range(9)} == set(first)
    assert {10} == set(group.assigned(b"b", 2, 10))
    group.release(b"a", 2)
    assert {2, 10} == set(group.assigned(b"b", 2, 10))
    assert {*range(9)} - {2} == set(group.assigned(b"a", *range(9), 30))

    assert first[0] == group.assigned(b"a", 0)[0], "it is the same lease"
    assert [(FREED, GROUP, b"", [])] == group.told(), "nobody is asked to release anything"
