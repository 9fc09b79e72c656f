# What a worker records of its decisions, and what somebody else finds when deciding the same again.
import tempfile
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

import msgpack
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.cluster.peer import SHUT
from broker.config.schema import Config, Overload, Quotas, QuotaScope
from broker.config.sources import restored
from broker.mqtt.packets import V5, V31, V311, Connect, Publish
from broker.overload.admit import ACCEPT, CLOSE, DROP, PAUSE, REFUSE, Verdict
from broker.overload.trace.player import Player, Replayed, replay
from broker.reasons import DropReason, PauseReason
from tests.cluster.talk import subscribed
from tests.innode import Node
from tests.inprocess import Broker, Client

Brokers = Callable[..., Broker]
Lines = list[MutableMapping[str, Any]]

# So little of everything that a few publishes reach each limit.
TIGHT = Overload(
    trace=1 << 20,
    refill=(2000, 1000, 500, 250, 120, 60, 30, 15, 8, 4, 2),
    cap=2000,
    cap_least=200,
    gate_bytes=4096,
    wait=1.0,
)
QUOTA = Quotas(reserve=0.5, session=QuotaScope(incoming_messages="60:1"))
VERSIONS = (V31, V311, V5)
TOPICS = (b"here", b"there", b"nowhere")
LARGE = bytes(256 * 1024)

clients = st.integers(0, 2)
publishes = st.tuples(
    st.just("publish"), clients, st.sampled_from(TOPICS), st.integers(0, 2), st.integers(0, 3000), st.integers(1, 60)
)
injections = st.tuples(
    st.just("inject"), st.integers(0, 1), st.sampled_from(["lag", "memory"]), st.floats(0, 3), st.floats(0.1, 3)
)
pauses = st.tuples(st.just("stop"), st.booleans())
time = st.tuples(st.just("advance"), st.integers(1, 12))
departures = st.tuples(st.just("leave"), clients)
loads = st.lists(st.one_of(publishes, publishes, publishes, injections, pauses, time, time, departures), max_size=25)


class Load:
    """Three clients of worker 0, with subscribers on both workers."""

    def __init__(self, folder: Path, quotas: Quotas) -> None:
        self.node = Node(2, Config(overload=TIGHT, quotas=quotas), traces=folder)
        here, there = self.node.workers
        self._readers = [here.connect("reader"), there.connect("other reader")]
        subscribed(self._readers[0], "here")
        subscribed(self._readers[1], "there")
        self._clients: list[Client | None] = [None] * len(VERSIONS)
        self._sent = 0

    def do(self, what: str, *how: Any) -> None:
        here, there = self.node.workers
        if what == "publish":
            self._publish(*how)
        elif what == "inject":
            number, signal, value, seconds = how
            self.node.workers[number].overload_monitor.inject(signal, value, self.node.clock.now + seconds)
        elif what == "stop":
            there.stopped = how[0]
        elif what == "advance":
            here.advance(how[0] / 10)
        elif client := self._clients[how[0]]:
            self._clients[how[0]] = None
            client.drop()
        here.settle()

    def _publish(self, number: int, topic: bytes, qos: int, size: int, count: int) -> None:
        client = self._clients[number]
        if client is None or client.closed:
            version = VERSIONS[number]
            client = self._clients[number] = self.node.workers[0].open(version)
            client.send(Connect(version, f"client-{number}", True, 0, None, None, None, {}))  # at a high level it waits
        for _ in range(count):
            self._sent = self._sent % 65535 + 1
            client.post(Publish(topic, bytes(size), qos, packet_id=self._sent if qos else 0))

    def traces(self, folder: Path) -> list[bytes]:
        """What the workers recorded, once they have ended."""
        for broker in self.node.workers:
            broker.stopped = False
        self.node.settle()
        for broker in self.node.workers:
            end(broker)
        self.node.close()
        return [(folder / name).read_bytes() for name in ("0", "1")]


def end(broker: Broker) -> None:
    """It records no more, and all is written."""
    assert broker.trace_file is not None
    broker.trace_file.close()


def plain(verdict: Verdict) -> tuple[int, object, float]:
    return verdict.kind, verdict.reason, verdict.until


def decided_again(trace: bytes) -> list[Replayed]:
    """By the settings that the trace itself tells; each of them as it was."""
    found = list(replay(trace, TIGHT))
    assert [plain(one.recorded) for one in found] == [plain(one.verdict) for one in found]
    assert all(one.passed == one.count for one in found if one.verdict.kind == ACCEPT)
    return found


def check(found: list[Replayed], broker: Broker) -> None:
    """What was replayed is what happened to clients, as it was counted there."""
    counters = broker.counters
    kinds = {kind: [one for one in found if one.verdict.kind == kind] for kind in (ACCEPT, DROP, REFUSE, PAUSE, CLOSE)}
    turned_away = len(kinds[DROP]) + len(kinds[REFUSE]) + len(kinds[CLOSE])
    assert counters.publishes_received == turned_away + sum(one.passed for one in found)
    for reason in (DropReason.QUOTA_SESSION_MESSAGES, DropReason.GATE_TIMEOUT):
        assert counters.dropped_by_reason[reason.label] == sum(one.verdict.reason is reason for one in kinds[DROP])
    for pause in (PauseReason.CREDITS, PauseReason.GATE, PauseReason.QUOTA_SESSION_MESSAGES):
        held = any(one.verdict.reason is pause for one in kinds[PAUSE])
        assert held == (counters.pauses_by_reason[pause.label] > 0)


@settings(max_examples=40, deadline=None)
@given(loads, st.booleans())
@example(  # quota, credits and a closed gate, and what waits for too long
    [
        ("publish", 0, b"here", 0, 100, 60),
        ("inject", 0, "lag", 1.0, 3.0),
        ("advance", 6),
        ("publish", 1, b"here", 1, 100, 60),
        ("publish", 2, b"nowhere", 0, 10, 60),
        ("stop", True),
        ("publish", 0, b"there", 0, 900, 20),
        ("publish", 1, b"there", 2, 900, 20),
        ("advance", 12),
        ("stop", False),
        ("advance", 12),
    ],
    True,
)
def test_what_was_decided_is_decided_again_to_the_last_bit(load: list[tuple[Any, ...]], limited: bool) -> None:
    """A policy would be tried on something that has not happened."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        running = Load(folder, QUOTA if limited else Quotas())
        for what, *how in load:
            running.do(what, *how)
        traces = running.traces(folder)

        for broker, trace in zip(running.node.workers, traces, strict=True):
            check(decided_again(trace), broker)


def recorded(folder: Path, *load: tuple[Any, ...]) -> list[Replayed]:
    """What worker 0 recorded under *load*."""
    running = Load(folder, Quotas())
    for what, *how in load:
        running.do(what, *how)
    found = decided_again(running.traces(folder)[0])
    check(found, running.node.workers[0])
    return found


def test_most_publishes_are_in_runs(tmp_path: Path) -> None:
    """A trace would be a record for each message, or lack most of them."""
    found = recorded(tmp_path, ("publish", 0, b"here", 0, 10, 20))

    assert [("client-0", 1), ("client-0", 19)] == [(one.client, one.passed) for one in found]


def test_who_waited_for_too_long_is_in_it(tmp_path: Path) -> None:
    """The worst that happens to a client could not be tried under another policy."""
    crowd = [("publish", number, b"there", number, 900, 6) for number in (0, 0, 1)]
    found = recorded(
        tmp_path, ("stop", True), *crowd, ("publish", 2, b"there", 1, 900, 6), ("advance", 12), ("advance", 12)
    )

    ends = {(one.client, one.verdict.kind) for one in found if one.verdict.kind not in (ACCEPT, PAUSE)}
    assert {("client-0", DROP), ("client-1", CLOSE), ("client-2", REFUSE)} == ends


def test_a_worker_that_is_full_of_other_things_is_in_it(tmp_path: Path) -> None:
    """Who was held back by what is no publish would seem to have passed."""
    running = Load(tmp_path, Quotas())
    running.do("stop", True)
    here = running.node.workers[0]
    (peer,) = here.mesh.peers
    peer.write(bytes(SHUT + 1))  # whatever: it is not read before the end
    running.do("publish", 2, b"there", 1, 10, 1)
    end(here)
    running.node.close()
    (held,) = decided_again((tmp_path / "0").read_bytes())

    assert (PAUSE, PauseReason.GATE, 0.0) == plain(held.verdict)


def test_a_trace_says_who_recorded_it_by_which_settings(tmp_path: Path) -> None:
    """Nobody could replay it by the policy that it came from, or say when that was."""
    running = Load(tmp_path, Quotas())
    trace = running.traces(tmp_path)[1]
    unpacker = msgpack.Unpacker()
    unpacker.feed(trace)
    player = Player(Overload())
    player.play(next(unpacker))

    assert ("weir", 1) == (player.about["node"], player.about["worker"])
    assert TIGHT == restored(player.about["settings"]).overload
    assert {"wall", "began", "boot"} <= player.about.keys()


def test_a_full_trace_ends_with_a_word_and_the_broker_goes_on(brokers: Brokers, tmp_path: Path, log: Lines) -> None:
    """The disk would be filled, or an incomplete recording be taken for a complete one."""
    file = tmp_path / "new" / "trace"
    broker = brokers(Config(overload=Overload(trace=2000)), trace=str(file))
    client = broker.connect("client", V5)
    for n in range(100):
        client.send(Publish(b"t", b"x", 1, packet_id=n + 1))
        broker.settle()
        broker.clock.now += 0.01
    recorder, trace_file = broker.protection.recorder, broker.trace_file
    assert recorder is not None and trace_file is not None
    trace_file.write()
    broker.advance(0.2)

    assert 100 == broker.counters.publishes_received
    assert [("trace_stopped", "it is full")] == [(line["event"], line["why"]) for line in log if "why" in line]
    assert "it is full" == recorder.statistics()["state"]
    assert recorder.statistics()["left_out"] > 0
    assert not broker.protection.judging
    assert 1000 < file.stat().st_size <= 2000
    assert 0 < len(list(replay(file.read_bytes(), Overload()))) < 100


def test_a_file_that_cannot_be_written_costs_the_recording_only(brokers: Brokers, log: Lines) -> None:
    """A worker would not start for want of something that only watches."""
    broker = brokers(Config(overload=Overload(trace=2000)), trace="/proc/none/trace")
    client = broker.connect("client", V5)
    client.send(Publish(b"t", b"x", 1, packet_id=1))
    client.receive()
    recorder, trace_file = broker.protection.recorder, broker.trace_file
    assert recorder is not None and trace_file is not None
    trace_file.write()

    assert "its file cannot be opened: No such file or directory" == recorder.statistics()["state"]
    assert 1 == len([line for line in log if line["event"] == "trace_stopped"])
    assert 1 == broker.counters.publishes_received
