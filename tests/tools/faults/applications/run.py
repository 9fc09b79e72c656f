# One run: a node with APPLICATION clients, whose messages are in a log, and faults; then a judgement.
#
# It is a run with durable sessions, with their clients, proxies and judge, and with faults of the carrier and of the
# log beside theirs. What is added to the judgement: that no saved position passes a message (logs.py), that what was
# delivered to APPLICATION clients came from the log, and that each kind of fault that was planned has happened.
import signal
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from broker.mqtt.packets import V311
from broker.reasons import CloseReason
from tests.tools.faults.applications import plan as kinds
from tests.tools.faults.applications.kafka import ProxiedKafka
from tests.tools.faults.applications.logs import PATIENCE as SNAPSHOT_PATIENCE
from tests.tools.faults.applications.logs import (
    Records,
    Snapshot,
    all_messages,
    kafka_records,
    missing,
    redis_records,
    take_snapshot,
)
from tests.tools.faults.applications.plan import KAFKA_LOG, plan
from tests.tools.faults.applications.shared import DOUBLED, LOST, Group, SharedJudge
from tests.tools.faults.durable import plan as durable
from tests.tools.faults.durable.checker import OVERDUE
from tests.tools.faults.durable.client import DurableClient
from tests.tools.faults.durable.history import Connected, Connecting, Ended, Event, Message, Received, Rollback
from tests.tools.faults.durable.judged_run import BURST, PATIENCE, TOPICS, WINDOW, send_signal
from tests.tools.faults.durable.lanes import Lane
from tests.tools.faults.durable.plan import Planned
from tests.tools.faults.durable.proxy import TO_CLIENT, TO_SERVER, Proxy
from tests.tools.faults.durable.run import DurableRun
from tests.tools.faults.victim import state

RULES: Final = '[{client = "app-*"}, {client = "*-to"}]'
PACK_TIMEOUT: Final = 2.0  # seconds
STUBBORN: Final = 2 * PACK_TIMEOUT  # seconds that some clients take to acknowledge, at most
MOST: Final = (10, 200)  # messages of a client that are not done; one of them in each run
LANES: Final = ((1, 0), (2, 20))  # QoS and receive maximum (0: the default) of each
SAMPLED: Final = 0.25  # seconds between two snapshots
TRIED: Final = 4  # sessions that are looked at for one
QOS_0: Final = 0.05  # seconds between two bursts at QoS 0
EXPIRIES: Final = (0, 0, 0, 0, 3, 3600)  # seconds, of messages; 0: none
ATTEMPTS: Final = 30  # to harm connections, one second each
VICTIM: Final = 30.0  # seconds until a process is there that can be harmed, at most
MOST_MISSING: Final = 5  # snapshots that are told
SHARED_PATIENCE: Final = 30.0  # seconds for what groups are owed: a topic that fails is asked for again after 5
AGAIN: Final = 1.0
PASSED: Final = "saved position"  # a verdict
NOT_FROM_LOG: Final = "not from the log"
NEVER: Final = "never happened"
AS_REDIS: Final = {  # the faults of connections to Kafka, as those of connections to Redis are called
    kinds.CUT_KAFKA_REQUESTS: durable.CUT_REQUESTS,
    kinds.CUT_KAFKA_REPLIES: durable.CUT_REPLIES,
    kinds.DELAY_KAFKA: durable.DELAY,
    kinds.HALF_OPEN_KAFKA: durable.HALF_OPEN,
}


class ApplicationRun(DurableRun):
    COLD = False

    def __init__(
        self, folder: Path, seed: int, workers: int, faults: int, brisk: bool = False, messages: int = 0, log: str = ""
    ) -> None:
        """*log*: one of LOGS, by default by the seed. The rest is as in `DurableRun`. AssertionError, KafkaError."""
        self._log = log or kinds.LOGS[seed % len(kinds.LOGS)]
        self._kafka: ProxiedKafka | None = None
        self._applications: list[DurableClient] = []
        self._snapshots: list[Snapshot] = []
        self._happened: Counter[str] = Counter()
        self._records: dict[str, Records] = {}
        self._shared = SharedJudge({})
        super().__init__(folder, seed, workers, faults, brisk, messages)
        self.outcome.told = f"{self._log}, {self.outcome.told}"

    # The node.

    def _make_plan(self, random: Random, workers: int, faults: int, brisk: bool) -> list[Planned]:
        self._most = random.choice(MOST)
        return plan(random, self._log, self._setup, self._durability, workers, faults, brisk)

    def _prepare(self) -> None:
        self._settings |= {
            "application.clients": RULES,
            "application.max_poll_records": self._most,
            "application.pack_timeout": f"{PACK_TIMEOUT:g}s",
            "application.ack_retries": 0,
        }
        if self._log == KAFKA_LOG:
            self._kafka = ProxiedKafka(self._folder / "kafka", lambda: self._loop.turn(0.02))
            self._settings["kafka.hosts"] = self._kafka.address

    def _again(self) -> None:
        if self._kafka is not None:
            self._go_on(self._kafka.pid)
            self._kafka.go_on()  # a node does not start without its log
        super()._again()

    def _end_servers(self) -> None:
        super()._end_servers()
        if self._kafka is not None:
            self._kafka.close()

    # Clients.

    def _make_clients(self) -> None:
        run = self._clients
        slow, old = STUBBORN, V311

        def application(name: str, filter: str, qos: int, **settings: int | float) -> DurableClient:
            made = DurableClient(run, f"app-{name}", filter=filter, qos=qos, application=True, **settings)  # type: ignore[arg-type]
            self._applications.append(made)
            return made

        self._publishers = [DurableClient(run, f"p{n}", filter=f"own/p{n}") for n in range(4)]
        self._careless = DurableClient(run, "z0", filter="own/z0")
        self._retainers = []
        self._subscribers = [
            application("all-1", "d/#", 1),
            application("all-2", "d/#", 2),
            application("slow-1", "d/+/0", 1, slow=0.1, receive_maximum=30),
            application("narrow-2", "d/#", 2, receive_maximum=8),
            application("stubborn-1", "d/p1/1", 1, slow=slow),
            application("z-0", "z/#", 0),
            application("down-0", "d/p0/#", 0),
            DurableClient(run, "device-1", filter="d/p1/+", qos=1, slow=0.02),
            DurableClient(run, "device-2", filter="d/+/1", qos=2),
        ]
        self._away = [
            application("away-1", "d/p0/#", 1, receive_maximum=100),
            application("away-2", "d/p1/#", 2),
        ]
        self._watcher = application("wills", "w/#", 1)
        self._cold = None
        self._lanes = []
        if self._messages:
            self._lanes = [Lane(run, f"b{number}", *each, application=True) for number, each in enumerate(LANES)]
            self._applications += [lane.subscriber for lane in self._lanes]
        self._roaming = [
            *self._publishers,
            self._careless,
            self._watcher,
            application("old-1", "d/p2/#", 1, version=old),
            application("old-2", "d/p3/#", 2, version=old),
            application("old-stubborn-1", "d/p3/1", 1, version=old, slow=slow),
            *self._make_members(old, slow),
        ]
        for lane in self._lanes:
            self._roaming += [lane.publisher, lane.subscriber]
        self._returning = [*self._subscribers, *self._away]
        self._lasting = [*self._roaming, *self._returning]

    def _make_members(self, old: int, slow: float) -> list[DurableClient]:
        """Those of two groups; each has one that may be stuck."""
        settings: dict[str, list[dict[str, int | float]]] = {
            "one": [{}, {"slow": slow}, {"receive_maximum": 8}],
            "two": [{"version": old, "slow": slow}, {}],
        }
        made: list[DurableClient] = []
        groups: dict[str, Group] = {}
        for name, each in settings.items():
            members = [f"app-{name}-{number}" for number in range(len(each))]
            groups[name] = Group("d/", members)
            for member, more in zip(members, each, strict=True):
                filter = f"$share/{name}/d/#"
                made.append(DurableClient(self._clients, member, filter=filter, qos=2, application=True, **more))  # type: ignore[arg-type]
        self._shared = SharedJudge(groups)
        return made

    def _load(self) -> None:
        super()._load()
        self._every(lambda: QOS_0, self._publish_carelessly)
        self._every(lambda: SAMPLED, self._sample)

    def _pump(self, one: DurableClient, qos: int) -> None:
        if one.up:
            for _ in range(min(self._random.randrange(BURST + 1), WINDOW - len(one.outgoing))):
                topic = f"d/{one.client_id}/{self._random.randrange(TOPICS)}"
                one.publish(topic, qos, expiry=self._random.choice(EXPIRIES))

    def _publish_carelessly(self) -> None:
        if self._careless.up:
            self._careless.publish(f"z/{self._random.randrange(3)}", 0)

    # Faults.

    def _inflict(self, planned: Planned) -> None:
        self._wait(lambda: self._can_be_harmed(planned), VICTIM)
        if not self._can_be_harmed(planned):
            return
        kafka = self._kafka
        match planned.kind:
            case kinds.KILL_CARRIER:
                send_signal(self._node.carrier(), signal.SIGKILL)
            case kinds.STOP_CARRIER:
                self._stop(self._node.carrier(), planned.seconds)
            case kinds.KILL_KAFKA:
                assert kafka is not None
                kafka.kill()
                self._turn(self._random.uniform(0.0, 2.0))
                kafka.start()
            case kinds.STOP_KAFKA:
                assert kafka is not None
                self._stop(kafka.pid, planned.seconds)
            case kinds.KILL_CARRIER_ALONE:
                assert kafka is not None
                self._stop(kafka.pid, planned.seconds)
                self._turn(planned.seconds * self._random.random())
                send_signal(self._node.carrier(), signal.SIGKILL)
            case kinds.CUT_KAFKA_REQUESTS | kinds.CUT_KAFKA_REPLIES | kinds.DELAY_KAFKA | kinds.HALF_OPEN_KAFKA:
                assert kafka is not None
                self._harm(kafka.proxy, AS_REDIS[planned.kind], planned)
            case _:
                super()._inflict(planned)
        self._happened[planned.kind] += 1

    def _harm(self, proxy: Proxy, kind: str, planned: Planned) -> None:
        """Until connections have suffered: a carrier that has just been started may have none yet."""
        before = _effect(proxy, kind)
        for _ in range(ATTEMPTS):
            super()._harm(proxy, kind, planned)
            self._wait(lambda: _effect(proxy, kind) > before, 1.0)
            if _effect(proxy, kind) > before:
                return

    def _can_be_harmed(self, planned: Planned) -> bool:
        """Whether the process that *planned* is about runs, if it is about one."""
        match planned.kind:
            case durable.KILL_WORKER | durable.STOP_WORKER | durable.TAKE_WHILE_STOPPED:
                pid = self._node.pids[planned.worker]
            case durable.KILL_REDIS | durable.STOP_REDIS:
                pid = self._redis()
            case durable.STOP_SUPERVISOR | durable.KILL_SUPERVISOR:
                pid = self._node.process.pid
            case kinds.KILL_CARRIER | kinds.STOP_CARRIER | kinds.KILL_CARRIER_ALONE:
                pid = self._node.carrier()
            case kinds.STOP_KAFKA:
                assert self._kafka is not None
                pid = self._kafka.pid
            case _:
                return True
        return pid not in self._stopped and state(pid) not in ("", "T")

    # What is stored.

    def _sample(self) -> None:
        """Take a snapshot of one APPLICATION session for which something must be stored, if one of some has that."""
        for one in self._random.sample(self._applications, TRIED):
            unfinished = self._unfinished(one)
            if unfinished:
                with self._ask_redis(SNAPSHOT_PATIENCE) as server:
                    snapshot = take_snapshot(server, self._clients.at(), one.client_id, unfinished)
                if snapshot is not None:
                    self._snapshots.append(snapshot)
                return

    def _unfinished(self, one: DurableClient) -> list[Message]:
        """What must be stored for the session of *one*, or be on its way to its log."""
        return self._checker.unfinished(one.client_id)

    def _note(self, event: Event) -> None:
        super()._note(event)
        self._shared.take(event)
        if isinstance(event, Rollback):  # the log may have lost its end, too
            self._snapshots.clear()

    def _ask_redis(self, patience: float) -> "redis.Redis":
        folder = self._node.folder / "redis" if self._server is None else self._server.folder
        path = str(folder / "redis.sock")
        return redis.Redis(unix_socket_path=path, socket_timeout=patience, retry=Retry(NoBackoff(), 0))

    # Afterwards.

    def _recover(self) -> None:
        if self._kafka is not None:
            self._go_on(self._kafka.pid)
            self._kafka.go_on()
        for client in self._lasting:
            client.hurry()
        super()._recover()
        self._wait(self._shared.complete, SHARED_PATIENCE)
        self._turn(AGAIN)  # what comes twice has the time to come
        self._read_logs()

    def _read_retained(self) -> None:
        pass

    def _read_logs(self) -> None:
        names = [one.client_id for one in self._applications]
        if self._kafka is not None:
            self._records = kafka_records(self._kafka.address, names, lambda: self._turn(0.0))
        else:
            with self._ask_redis(PATIENCE) as server:
                self._records = {name: redis_records(server, name) for name in names}

    def _judge(self) -> None:
        outcome = self.outcome
        finished = not outcome.failures
        super()._judge()
        if finished:
            self._judge_faults()
            self._judge_shared()
        if self._records:
            self._judge_positions()
            self._judge_sources()
        outcome.kinds = self._happened
        timeouts = CloseReason.PACK_TIMEOUT.code
        outcome.figures |= {
            "pack time-outs": sum(one.disconnected[timeouts] for one in self._applications),
            "records": sum(len(records) for records in self._records.values()),
            "snapshots": len(self._snapshots),
        }

    def _judge_shared(self) -> None:
        """Each group got all that was acknowledged; see shared.py."""
        lost, doubled = self._shared.missing(), self._shared.doubled()
        for kind, found in ((LOST, lost), (DOUBLED, doubled)):
            if found:
                self.outcome.failures.append(f"{kind}: {len(found)} messages, {found[:MOST_MISSING]} the first")
                self.outcome.verdicts[kind] += len(found)
        self.outcome.figures |= {"shared": self._shared.delivered()}
        if not self._shared.delivered():
            self.outcome.failures.append(f"{NEVER}: a delivery to a member of a group")

    def _judge_faults(self) -> None:
        """A run in which a kind of fault never happened has shown nothing about it."""
        happened = set(self._happened)
        for proxy, names in self._proxies():
            happened -= {name for kind, name in names.items() if not _effect(proxy, kind)}
        never = {each.kind for each in self._plan} - happened
        if never:
            self.outcome.failures.append(f"{NEVER}: {', '.join(sorted(never))}")

    def _proxies(self) -> list[tuple[Proxy, dict[str, str]]]:
        """Proxies, and what their faults are called."""
        found: list[tuple[Proxy, dict[str, str]]] = []
        if self._proxy is not None:
            found.append((self._proxy, {kind: kind for kind in AS_REDIS.values()}))
        if self._kafka is not None:
            found.append((self._kafka.proxy, {kind: name for name, kind in AS_REDIS.items()}))
        return found

    def _judge_positions(self) -> None:
        """No saved position passes a message that is not stored elsewhere."""
        wrong = [(each, found) for each in self._snapshots if (found := missing(each, self._records[each.client]))]
        for snapshot, found in wrong[:MOST_MISSING]:
            what = f"{len(found)} messages are neither in the log nor in the queue: {sorted(found)[:MOST_MISSING]}"
            self.outcome.failures.append(f"{PASSED}: {snapshot.at:.3f} s: {snapshot.client}: {what}")
        if wrong:
            self.outcome.verdicts[PASSED] += len(wrong)

    def _judge_sources(self) -> None:
        """What was delivered to APPLICATION clients at QoS 1 and 2, in their last sessions, was in their logs.

        The logs of sessions that have ended are deleted.
        """
        delivered = last_deliveries(self._history, self._records)
        if any(isinstance(event, Rollback) for event in self._history) and self._kafka is None:
            return  # the log may have lost its end
        from_logs = 0
        for name, messages in delivered.items():
            found = all_messages(self._records[name])
            from_logs += len(messages & found)
            if beside := sorted(messages - found):
                what = f"{len(beside)} messages, {beside[:MOST_MISSING]} the first"
                self.outcome.failures.append(f"{NOT_FROM_LOG}: {name}: {what}")
                self.outcome.verdicts[NOT_FROM_LOG] += len(beside)
        self.outcome.figures["from logs"] = from_logs
        if not from_logs:
            self.outcome.failures.append(f"{NEVER}: a delivery from a log")


def _effect(proxy: Proxy, kind: str) -> int:
    """How often connections have suffered from faults of *kind*."""
    match kind:
        case durable.CUT_REQUESTS:
            return proxy.cuts[TO_SERVER]
        case durable.CUT_REPLIES:
            return proxy.cuts[TO_CLIENT]
        case durable.DELAY:
            return proxy.delayed
        case _:
            return proxy.muted


def last_deliveries(history: Iterable[Event], clients: Iterable[str]) -> dict[str, set[Message]]:
    """What came to *clients* at QoS 1 and 2, in the last session of each.

    A clean start that was not answered may end a session later: until then nobody knows of which one a message is.
    """
    delivered: dict[str, set[Message]] = {name: set() for name in clients}
    asked: set[str] = set()  # clients whose clean start is under way
    late: dict[str, float] = {}  # when the last one was that was not answered
    for event in history:
        found = delivered.get(event.client)
        if found is None:
            continue
        if isinstance(event, Received) and event.qos and event.at - late.get(event.client, -OVERDUE) >= OVERDUE:
            found.add(event.message)
        elif isinstance(event, Ended) and event.client in asked:
            late[event.client] = event.at
        if begins_session(event):
            found.clear()
        if isinstance(event, Connecting) and event.clean:
            asked.add(event.client)
        elif isinstance(event, Connected | Ended):
            asked.discard(event.client)
    return delivered


def begins_session(event: Event) -> bool:
    """Whether a session begins, or may, as a CONNECT without an answer has asked for that."""
    if isinstance(event, Connecting):
        return event.clean
    return isinstance(event, Connected) and not event.present
