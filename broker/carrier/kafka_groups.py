# Members of consumer groups of Kafka: its coordinator says which partitions of a topic each of them is to read
# (`application.shared = "groups"`).
#
# KafkaConsumer is not used: it would be a thread and several connections for each member, and reads by itself. A member
# here is a task in the loop of kafka-python, one thread for all, which joins, says that it lives, and tells what it was
# given. Whether it may read that yet is for the leases of the worker (lease_scripts.py), so nobody stops reading while
# the members of a group change, and what a member keeps is not interrupted.
#
# A connection for each member: Kafka takes no other request over it before the one to join is answered, and that waits
# for all others. What is not for a member alone, such as leaving, goes over another one.
#
# The protocol is that of all versions of Kafka ("classic"): the member that Kafka calls the leader gives out the
# partitions, here so that members keep what they have as far as that is fair.
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, Final

from kafka import errors
from kafka.net.compat import KafkaNetClient
from kafka.net.selector import NetworkSelector
from kafka.protocol.consumer import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest, MetadataResponse

from broker.carrier.inbox import Inbox
from broker.carrier.kafka_clients import CLIENT, CONNECT, REQUEST
from broker.carrier.kafka_errors import error_of
from broker.log import Log as Lines
from broker.reasons import LogFailure
from broker.store.logs.topics import LogError

HEARTBEAT: Final = 1.0  # seconds until a member learns that the group changes; it costs a millisecond of CPU
SESSION: Final = 10.0  # seconds without a heartbeat after which Kafka gives the partitions of a member to others
REBALANCE: Final = 10.0  # seconds that Kafka waits for members to join again
AGAIN: Final = 1.0  # seconds until Kafka is asked again
SOON: Final = 0.05  # the same, if it only has to join anew
REFUSED: Final = 30.0  # the same, if people have to remove the reason
MOST: Final = 200  # members: as many heartbeats take a fifth of a processor
FULL: Final = "as many services of this node as may be are members of consumer groups"
PROTOCOL_TYPE: Final = "consumer"  # of which the tools of Kafka show partitions
PROTOCOL: Final = "weir"  # how partitions are given out: no consumer that is not of Weir can join
OWNED: Final = 1  # the version of what a member says of itself from which on it has the partitions that it owns

Told = Callable[[list[int], str], None]  # partitions; why it is no member now, or ""


def shares(owned: Mapping[str, Collection[int]], partitions: int) -> dict[str, list[int]]:
    """Which of *partitions* each member gets: all have as many, and of these as many as can be that they have."""
    given: dict[str, list[int]] = {}
    taken: set[int] = set()
    least, extra = divmod(partitions, len(owned))
    for member in sorted(owned):
        has = [number for number in sorted(owned[member]) if number < partitions and number not in taken]
        given[member] = has[: least + 1 if extra else least]
        if len(given[member]) > least:
            extra -= 1
        taken.update(given[member])
    for number in range(partitions):
        if number not in taken:
            given[min(given, key=lambda member: (len(given[member]), member))].append(number)
    return given


class GroupMember:
    """*told* is called in the thread of the log."""

    def __init__(self, groups: "KafkaGroups", group: str, topic: str, partitions: int, told: Told) -> None:
        self.group: Final = group
        self.topic: Final = topic
        self.partitions: Final = partitions  # of the topic
        self.told: Told | None = told  # None: it has left
        self._groups = groups
        # For the thread of the loop.
        self.id = ""  # that Kafka has given it
        self.generation = -1
        self.owned: list[int] = []
        self.failure: LogFailure | None = None  # why it is no member, as it was told last
        self.left = False
        self.node = ""  # of its connection; "": the coordinator is not known
        self.broker = -1  # that is the coordinator, or was last
        self.heard = time.monotonic()  # when Kafka has answered last

    def leave(self) -> None:
        """Have Kafka give its partitions to others; *told* is not called any more. Once."""
        self.told = None
        self._groups.leave(self)

    def tell(self, partitions: list[int], why: str) -> None:
        """In the thread of the log."""
        if self.told is not None:
            self._groups.note(self.group, why)
            self.told(partitions, why)


class KafkaGroups:
    """`Groups`."""

    def __init__(self, options: Mapping[str, Any], inbox: Inbox, lines: Lines, most: int = MOST) -> None:
        """*options*: of all clients of kafka-python. *most*: members; others wait until one of these leaves."""
        self._options = {**CLIENT, "slow_task_threshold_secs": 0, **options}
        self._inbox = inbox
        self._lines = lines
        self._most = most
        self._troubles: dict[str, str] = {}  # groups that members cannot join, and why, as it was logged
        self._served: set[GroupMember] = set()
        self._full = False  # since nobody waited last
        self._waiting: deque[GroupMember] = deque()
        self._net = NetworkSelector(**self._options)
        self._closer: threading.Thread | None = None
        self._numbers = count(1)
        # For the thread of the loop.
        self._client: Any = None
        self._members: dict[str, tuple[GroupMember, ...]] = {}  # by group: those that can commit offsets now
        self._net.start()

    # In the thread of the log.

    def join(self, group: str, topic: str, partitions: int, told: Told) -> GroupMember:
        """Have a member join *group*, which reads *topic*."""
        member = GroupMember(self, group, topic, partitions, told)
        self._waiting.append(member)
        if len(self._served) >= self._most:
            self._inbox.put(partial(told, [], f"{FULL} ({self._most})"))
            if not self._full:
                self._full = True
                self._lines.warning("consumer_groups_full", most=self._most)
        self._serve_next()
        return member

    def leave(self, member: GroupMember) -> None:
        if member in self._served:
            self._served.discard(member)
            if not any(each.group == member.group for each in self._served):
                self._troubles.pop(member.group, "")
            self._call(self._leave, member)
        else:
            self._waiting.remove(member)
        self._serve_next()

    def stop(self) -> None:
        self._call(self._close)
        self._closer = threading.Thread(target=self._end, name="kafka-groups-end", daemon=True)
        self._closer.start()

    def is_alive(self) -> bool:
        return self._closer is None or self._closer.is_alive()

    def note(self, group: str, why: str) -> None:
        """A member of *group* was told *why* it is none now, or ""."""
        if why and group not in self._troubles:
            self._lines.warning("consumer_group_failed", group=group, why=why)
            self._troubles[group] = why
        elif not why and self._troubles.pop(group, ""):
            self._lines.info("consumer_group_recovered", group=group)

    def _serve_next(self) -> None:
        while self._waiting and len(self._served) < self._most:
            member = self._waiting.popleft()
            self._served.add(member)
            self._call(self._serve, member)
        self._full = len(self._waiting) > 0

    def _call(self, work: Callable[..., object], *arguments: Any) -> None:
        """Have *work* done in the thread of the loop."""
        if self._closer is None:
            self._net.call_soon_threadsafe(lambda: work(*arguments))

    def _end(self) -> None:
        self._net.stop()
        self._net.close()

    # In any thread.

    def membership(self, group: str) -> tuple[str, int]:
        """Who may commit offsets of *group* now: the id of a member and its generation; as nobody: ("", -1)."""
        members = self._members.get(group)
        return (members[0].id, members[0].generation) if members else ("", -1)

    # In the thread of the loop.

    async def _serve(self, member: GroupMember) -> None:
        while not member.left:
            pause = 0.0
            try:
                await self._join(member)
                self._members[member.group] = (*self._members.get(member.group, ()), member)
                await self._live(member)
            except (errors.UnknownMemberIdError, errors.IllegalGenerationError):
                member.id = ""
                self._lose(member, None)
                pause = SOON
            except errors.RebalanceInProgressError:  # while it was given its partitions
                pause = SOON
            except Exception as exception:  # whatever kafka-python may raise
                refused = not getattr(exception, "retriable", False)
                silent = time.monotonic() - member.heard >= SESSION
                if refused or (silent and member.failure is None):
                    self._lose(member, error_of(exception))
                pause = REFUSED if refused else AGAIN
                self._disconnect(member)
            self._cannot_commit(member)
            if pause and not member.left:
                await self._net.sleep(pause)
        self._disconnect(member)

    async def _join(self, member: GroupMember) -> None:
        """Join the group, again if it was a member. KafkaError."""
        if not member.node:
            await self._find(member)
        joined = await self._ask(member, _join_request(member), int(1000 * REBALANCE) + REQUEST)
        if errors.for_code(joined.error_code) is errors.MemberIdRequiredError:
            member.id = joined.member_id
            if member.left:  # Kafka would wait for it
                self._say_left(member)
                return
            joined = await self._ask(member, _join_request(member), int(1000 * REBALANCE) + REQUEST)
        _check(joined, member)
        member.id, member.generation = joined.member_id, joined.generation_id
        leads = joined.leader == joined.member_id
        request = SyncGroupRequest(
            group_id=member.group,
            generation_id=member.generation,
            member_id=member.id,
            group_instance_id=None,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=PROTOCOL,
            assignments=_assignments(member, joined.members) if leads else [],
            min_version=3,
            max_version=5,
        )
        given = await self._ask(member, request, int(1000 * REBALANCE) + REQUEST)
        _check(given, member)
        found = ConsumerProtocolAssignment.decode(given.assignment) if given.assignment else None
        member.owned = [] if found is None else sorted(one.partition for one in found.partitions())
        member.failure = None
        self._tell(member, member.owned, "")

    async def _live(self, member: GroupMember) -> None:
        """Return when it is to join again, or has left. KafkaError."""
        while not member.left:
            await self._net.sleep(HEARTBEAT)
            if member.left:
                return
            request = HeartbeatRequest(
                group_id=member.group,
                generation_id=member.generation,
                member_id=member.id,
                group_instance_id=None,
                min_version=3,
            )
            answer = await self._ask(member, request, REQUEST)
            if errors.for_code(answer.error_code) is errors.RebalanceInProgressError:
                return
            _check(answer, member)

    async def _find(self, member: GroupMember) -> None:
        """Find the coordinator of the group, and have a connection to it for *member*. KafkaError."""
        if self._client is None:
            self._client = KafkaNetClient(net=self._net, **self._options)
        manager = self._client._manager
        if not manager.bootstrapped:
            await manager.bootstrap_async(CONNECT)
        kind = CoordinatorType.GROUP.value
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[member.group], min_version=4)
        found = (await manager.send(request)).coordinators[0]
        _check(found, member)
        member.node, member.broker = f"member-{next(self._numbers)}", found.node_id
        for node in (member.node, member.broker):
            broker = MetadataResponse.MetadataResponseBroker(node, found.host, found.port, None)
            manager.cluster._coordinator_brokers[node] = broker

    async def _ask(self, member: GroupMember, request: Any, timeout: int) -> Any:
        answer = await self._client._manager.send(request, node_id=member.node, request_timeout_ms=timeout)
        member.heard = time.monotonic()
        return answer

    def _lose(self, member: GroupMember, error: LogError | None) -> None:
        """Others may have its partitions by now."""
        failure = None if error is None else error.failure
        if member.owned or failure is not member.failure:
            member.owned, member.failure = [], failure
            self._tell(member, [], "" if error is None else str(error))

    def _tell(self, member: GroupMember, partitions: list[int], why: str) -> None:
        if not member.left:
            self._inbox.put(partial(member.tell, partitions, why))

    def _disconnect(self, member: GroupMember) -> None:
        """Forget the coordinator: another broker may be it by now."""
        node, member.node = member.node, ""
        if node:
            manager = self._client._manager
            manager.close(node)
            manager.cluster._coordinator_brokers.pop(node, None)

    def _cannot_commit(self, member: GroupMember) -> None:
        rest = tuple(each for each in self._members.get(member.group, ()) if each is not member)
        if rest:
            self._members[member.group] = rest
        else:
            self._members.pop(member.group, None)

    def _leave(self, member: GroupMember) -> None:
        member.left = True
        self._cannot_commit(member)
        if member.id and member.broker >= 0:
            self._say_left(member)

    def _say_left(self, member: GroupMember) -> None:
        """Not over its own connection, which may wait for an answer. If it fails, Kafka notices it after SESSION."""
        who = LeaveGroupRequest.MemberIdentity(member_id=member.id, group_instance_id=None, reason=None)
        request = LeaveGroupRequest(group_id=member.group, members=[who], min_version=3)
        try:
            self._client._manager.send(request, node_id=member.broker)
        except errors.KafkaError:
            pass

    def _close(self) -> None:
        if self._client is not None:
            self._client._manager.close()


def _check(answer: Any, member: GroupMember) -> None:
    """KafkaError: *answer* has one."""
    kind = errors.for_code(answer.error_code)
    if kind is not errors.NoError:
        raise kind(member.group)


def _join_request(member: GroupMember) -> Any:
    owned = ConsumerProtocolSubscription.TopicPartition(topic=member.topic, partitions=member.owned)
    about = ConsumerProtocolSubscription(topics=[member.topic], user_data=b"", owned_partitions=[owned])
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name=PROTOCOL, metadata=about.encode(version=OWNED))
    return JoinGroupRequest(
        group_id=member.group,
        session_timeout_ms=int(1000 * SESSION),
        rebalance_timeout_ms=int(1000 * REBALANCE),
        member_id=member.id,
        group_instance_id=None,
        protocol_type=PROTOCOL_TYPE,
        protocols=[protocol],
        min_version=5,
        max_version=7,
    )


def _assignments(leader: GroupMember, members: Sequence[Any]) -> list[Any]:
    """What each of *members* is to read."""
    owned: dict[str, list[int]] = {}
    for one in members:
        about = ConsumerProtocolSubscription.decode(one.metadata)
        owned[one.member_id] = [
            number for each in about.owned_partitions if each.topic == leader.topic for number in each.partitions
        ]
    given = []
    for member, numbers in shares(owned, leader.partitions).items():
        part = ConsumerProtocolAssignment.TopicPartition(topic=leader.topic, partitions=numbers)
        content = ConsumerProtocolAssignment(assigned_partitions=[part], user_data=b"").encode(version=OWNED)
        given.append(SyncGroupRequest.SyncGroupRequestAssignment(member_id=member, assignment=content))
    return given
