# Sessions of several workers on one real registry.
from collections.abc import Callable

import pytest

from broker.cluster.owner import Owner
from broker.cluster.registered_store import RegisteredStore
from broker.cluster.session_claims import MOST_WAITING, SessionClaims
from broker.cluster.takeover import OnTakeover, TakeoverResult
from broker.mqtt.packets import Will
from broker.reasons import CloseReason
from broker.session.principal import ANONYMOUS, Principal, owner_tag
from broker.session.session import Session
from broker.session.will import Will as SessionWill
from broker.store.redis.connection import READY
from tests.cluster.shard import KEYS, Shard
from tests.cluster.test_registry import owner
from tests.redis_servers import RunningRedis
from tests.store.loop import Loop
from tests.store.test_sessions import Asking, session

pytestmark = pytest.mark.system  # real servers

StartRedis = Callable[..., RunningRedis]


class Node:
    """The workers of a node, who ask each other without delay; or, while `waiting`, when a test says so."""

    def __init__(self) -> None:
        self.workers: dict[str, Worker] = {}
        self.asked: list[tuple[str, str, bool]] = []
        self.waiting: list[Callable[[], None]] | None = None

    def take_over(self, client_id: str, former: Owner, epoch: int, user: str, wanted: bool, then: OnTakeover) -> None:
        self.asked.append((client_id, former.worker.incarnation_text, wanted))
        self._do(lambda: self.workers[former.worker.incarnation_text].hand_over(client_id, epoch, user, wanted, then))

    def claim_within_node(self, client_id: str, epoch: int, user: str, wanted: bool, then: OnTakeover) -> None:
        self.asked.append((client_id, "within the node", wanted))
        holders = [worker for worker in self.workers.values() if worker.store.find(client_id) is not None]
        self._do(
            lambda: (
                holders[0].hand_over(client_id, epoch, user, wanted, then) if holders else then(TakeoverResult(None))
            )
        )

    def claim_everywhere(self, client_id: str, epoch: int, user: str, wanted: bool, then: OnTakeover) -> None:
        self.claim_within_node(client_id, epoch, user, wanted, then)

    def reaches(self, owner: Owner) -> bool:
        return owner.worker.incarnation_text in self.workers

    def whether(self, client_id: str, owner: Owner, then: Callable[[bool], None]) -> None:
        worker = self.workers.get(owner.worker.incarnation_text)
        self._do(lambda: worker.claims.answer_whether(client_id, then) if worker else then(False))

    def go_on(self) -> None:
        waiting, self.waiting = self.waiting, None
        for do in waiting or []:
            do()

    def _do(self, do: Callable[[], None]) -> None:
        if self.waiting is None:
            do()
        else:
            self.waiting.append(do)


class Worker:
    def __init__(
        self, loop: Loop, server: RunningRedis, number: int, node: Node | None = None, alone: bool = False
    ) -> None:
        self.loop = loop
        self.node = node or Node()
        self.evicted: list[Session] = []
        self.settled: list[tuple[str, int]] = []  # wills that Redis could not be told of
        self.shard = Shard(loop, server.address, number, settles=False, alone=alone)
        self.registry = self.shard.registry
        self.store = RegisteredStore(
            self.registry, loop.now, lambda client_id, epoch: self.settled.append((client_id, epoch))
        )
        self.claims = SessionClaims(
            self.store, self.registry, self.node, loop.now, self.evict, self.shard.seal, None, None
        )
        loop.ticking.append(self.claims)
        self.node.workers[self.shard.incarnation] = self

    def evict(self, gone: Session) -> None:
        self.evicted.append(gone)
        self.store.forget(gone)

    def hand_over(self, client_id: str, epoch: int, user: str, wanted: bool, then: OnTakeover) -> None:
        def give(handover: TakeoverResult) -> None:
            if handover.session is not None:
                self.store.forget(handover.session)
            kept = handover.session if wanted else None
            nowhere, of_other_user = handover.epoch == 0, handover.of_other_user
            then(TakeoverResult(kept, handover.epoch, handover.superseded, nowhere, of_other_user))

        self.claims.give_up(client_id, epoch, user, give)

    def ask(
        self, client_id: str, lasting: bool = False, clean_start: bool = False, user: str | None = None
    ) -> "Coming":
        coming = Coming(self.store, client_id, clean_start, 60 if lasting else 0, user)
        self.claims.claim(coming)
        return coming

    def connect(self, client_id: str, lasting: bool = False, user: str | None = None) -> Session | CloseReason | None:
        """A client that comes, and stays if it may: what it found."""
        coming = self.ask(client_id, lasting, user=user)
        self.loop.until(lambda: bool(coming.answers))
        return coming.answers[0]


class Coming(Asking):
    """A client that stays: with the session that is found, or a new one."""

    def __init__(
        self, store: RegisteredStore, client_id: str, clean_start: bool, expiry: int, user: str | None
    ) -> None:
        super().__init__(client_id, clean_start, expiry, owner=owner_tag(None if user is None else user.encode()))
        self._store = store
        self._user = user

    def found(self, session_: Session | None) -> None:
        super().found(session_)
        if session_ is None:
            new = session(self.client_id)
            new.principal = Principal(self.client_id, self._user, 0)
            self._store.keep(new)


@pytest.fixture
def server(start_redis: StartRedis) -> RunningRedis:
    return start_redis()


def owned_by(server: RunningRedis, worker: Worker, client_id: str) -> bool:
    return owner(server, client_id)[1:2] == [worker.shard.incarnation]


def test_a_session_is_where_its_client_was_last(server: RunningRedis, loop: Loop) -> None:
    """A client that lands on another worker would leave its session, or its connection, behind."""
    loop.stop_clock()
    node = Node()
    one, two = Worker(loop, server, 1, node), Worker(loop, server, 2, node)
    assert one.connect("me") is None
    there = one.store.find("me")

    assert there is not None
    assert there is two.connect("me")
    assert [("me", one.shard.incarnation, True)] == node.asked
    one.shard.settle()
    two.shard.settle()
    assert owned_by(server, two, "me")
    assert (None, there) == (one.store.find("me"), two.store.find("me"))
    assert (0, 1) == (one.store.count(), two.store.count())
    assert [there] == list(two.store.sessions())


def test_a_claim_that_is_answered_at_the_second_try_finds_the_session(server: RunningRedis, loop: Loop) -> None:
    """The first one was carried out, too late: Redis names the one who asks as the former owner."""
    node = Node()
    one, two = Worker(loop, server, 1, node), Worker(loop, server, 2, node)
    assert one.connect("me", lasting=True) is None
    there = one.store.find("me")
    loop.ready(two.shard.commands)
    server.pause()
    coming = two.ask("me", lasting=True)
    loop.for_seconds(0.6)
    server.go_on()
    loop.until(lambda: bool(coming.answers))

    assert there is not None
    assert [there] == coming.answers


def test_a_claim_whose_answer_was_lost_finds_the_session(server: RunningRedis, loop: Loop) -> None:
    """Redis was killed between the two, or the connection broke: nobody heard who had the session."""
    node = Node()
    one, two = Worker(loop, server, 1, node), Worker(loop, server, 2, node)
    assert one.connect("me", lasting=True) is None
    there = one.store.find("me")
    two.shard.claim("me")
    two.registry.owned._current.clear()  # as if that had never been answered

    assert there is not None
    assert there is two.connect("me", lasting=True)


def test_a_session_is_found_though_redis_has_forgotten_who_has_it(server: RunningRedis, loop: Loop) -> None:
    """Redis has come back without the end of its log, and its owner has not told it again: it would be nobody's."""
    node = Node()
    one, two = Worker(loop, server, 1, node), Worker(loop, server, 2, node)
    assert one.connect("me", lasting=True) is None
    there = one.store.find("me")
    two.shard.settle()
    with server.client() as client:
        client.delete(KEYS.owner(b"me"))
    two.shard.commands.lost("gone", loop.now())
    loop.ready(two.shard.commands)

    assert there is not None
    assert there is two.connect("me", lasting=True)


def test_who_was_refused_while_redis_hung_finds_the_session_when_it_comes_again(
    server: RunningRedis, loop: Loop
) -> None:
    """Redis names the worker of the refused claim, which never had the session: its client would begin another one."""
    node = Node()
    one, two = Worker(loop, server, 1, node), Worker(loop, server, 2, node)
    assert one.connect("me", lasting=True) is None
    there = one.store.find("me")
    assert there is not None
    loop.ready(two.shard.commands)
    server.pause()
    assert CloseReason.SERVER_UNAVAILABLE is two.connect("me", lasting=True)
    coming = two.ask("me", lasting=True)
    loop.for_seconds(0.2)
    server.go_on()
    loop.until(lambda: bool(coming.answers))

    assert [there] == coming.answers
    assert one.store.find("me") is None
    two.shard.settle()
    assert owned_by(server, two, "me")


def test_who_was_refused_while_redis_hung_leaves_the_session_where_it_is(server: RunningRedis, loop: Loop) -> None:
    """Their claims are carried out when it goes on: the session would be nobody's, or of somebody without it."""
    node = Node()
    one, two, three, four = (Worker(loop, server, number, node) for number in range(1, 5))
    assert one.connect("me", lasting=True) is None
    there = one.store.find("me")
    assert there is not None
    loop.ready(*(worker.shard.commands for worker in (two, three, four)))
    server.pause()
    assert CloseReason.SERVER_UNAVAILABLE is two.connect("me", lasting=True)
    server.go_on()
    loop.until(lambda: owned_by(server, one, "me"))

    server.pause()
    refused = [worker.ask("me", lasting=True) for worker in (two, three, two)]
    loop.until(lambda: all(coming.answers for coming in refused))
    server.go_on()
    for worker in (two, three):
        worker.shard.settle()
    assert there is four.connect("me", lasting=True)
    assert one.store.find("me") is None


def test_a_session_that_only_this_worker_can_have_is_resumed_while_redis_hangs(
    server: RunningRedis, loop: Loop
) -> None:
    """Where no session is stored, a Redis that is away or full would turn away who needs nobody else."""
    one = Worker(loop, server, 1)
    assert one.connect("me", lasting=True) is None
    there = one.store.find("me")
    assert there is not None
    server.pause()

    assert there is one.connect("me", lasting=True)
    assert CloseReason.SERVER_UNAVAILABLE is one.connect("another", lasting=True)
    server.go_on()
    loop.until(lambda: owned_by(server, one, "me"))


def test_a_clean_start_ends_what_is_elsewhere(server: RunningRedis, loop: Loop) -> None:
    """The former session would go on without a client [MQTT-3.1.4-4]."""
    loop.stop_clock()
    node = Node()
    one, two = Worker(loop, server, 1, node), Worker(loop, server, 2, node)
    one.connect("me")
    clean = two.ask("me", clean_start=True)
    loop.until(lambda: bool(clean.answers))

    assert [None] == clean.answers
    assert [("me", one.shard.incarnation, False)] == node.asked
    assert (0, 1) == (one.store.count(), two.store.count())


def test_a_client_that_comes_back_asks_nobody(server: RunningRedis, loop: Loop) -> None:
    """Each reconnection would go through the other workers."""
    loop.stop_clock()
    worker = Worker(loop, server, 1)
    worker.connect("me")

    assert worker.store.find("me") is worker.connect("me")
    assert [] == worker.node.asked


def test_a_session_that_ends_is_released(server: RunningRedis, loop: Loop) -> None:
    """Redis would name owners that have nothing."""
    loop.stop_clock()
    worker = Worker(loop, server, 1)
    worker.connect("me")
    there = worker.store.find("me")
    assert there is not None
    worker.store.forget(there)
    worker.shard.settle()

    assert [] == owner(server, "me")


def test_a_session_that_ends_takes_its_will_back_at_once(server: RunningRedis, loop: Loop) -> None:
    """A worker that is killed a moment later would have its will published again, by another worker."""
    loop.stop_clock()
    worker = Worker(loop, server, 1)
    coming = Coming(worker.store, "me", False, 0, None)
    coming.will = Will(b"gone", b"")
    worker.claims.claim(coming)
    loop.until(lambda: bool(coming.answers))
    there = worker.store.find("me")
    assert there is not None
    there.will = SessionWill(coming.will)
    with server.client() as client:
        assert 1 == len(client.keys("*:wills:*"))
        worker.store.forget(there)
        for wire in loop.wires:  # what was said, and nothing else: the worker does not come to its next tick
            wire.flush(loop.now())
        client.ping()  # it was said before this, and Redis does one after the other

        assert [] == client.keys("*:wills:*")


@pytest.mark.parametrize("lasting", [False, True])
def test_a_will_that_redis_cannot_be_told_of_is_told_to_the_node(
    server: RunningRedis, loop: Loop, lasting: bool
) -> None:
    """A worker that is killed while Redis is away would have it published again, by whoever mourns it."""
    worker = Worker(loop, server, 1)
    coming = Coming(worker.store, "me", False, 60 if lasting else 0, None)
    coming.will = Will(b"gone", b"")
    worker.claims.claim(coming)
    loop.until(lambda: bool(coming.answers))
    there = worker.store.find("me")
    assert there is not None
    there.will = SessionWill(coming.will)
    epoch = worker.registry.epoch_of("me")
    server.end()
    loop.until(lambda: worker.registry._commands.state != READY)
    assert [] == worker.settled
    if lasting:
        worker.store.without_will(there)
    else:
        worker.store.forget(there)

    assert [("me", epoch)] == worker.settled


def test_a_client_that_went_while_it_was_asked_for_leaves_nothing(server: RunningRedis, loop: Loop) -> None:
    """Each connection that is given up would leave an owner, and memory, behind."""
    loop.stop_clock()
    worker = Worker(loop, server, 1)
    gone = Asking("me")
    worker.claims.claim(gone)
    loop.until(lambda: bool(gone.answers))
    worker.shard.settle()

    assert ([None], [], 0) == (gone.answers, owner(server, "me"), worker.registry.epoch_of("me"))
    assert 0 == worker.claims.counts.waiting


def test_without_redis_the_node_is_asked(server: RunningRedis, loop: Loop) -> None:
    """Clients could not connect while Redis is away, or twice within a node."""
    node = Node()
    one, two = Worker(loop, server, 1, node), Worker(loop, server, 2, node)
    loop.stop_clock()
    one.connect("there")
    there = one.store.find("there")
    loop.ready(two.shard.commands)
    server.kill()
    loop.start_clock()

    assert there is two.connect("there")
    assert two.connect("new") is None
    assert two.connect("new") is two.store.find("new")
    assert [("there", "within the node", True), ("new", "within the node", True)] == node.asked
    assert CloseReason.SERVER_UNAVAILABLE is two.connect("lasting", lasting=True)
    server.start()
    two.shard.settle()
    assert owned_by(server, two, "there")
    assert owned_by(server, two, "new")
    assert [] == owner(server, "lasting")


def test_a_clock_that_is_behind_asks_the_node_again(server: RunningRedis, loop: Loop) -> None:
    """While Redis is away nobody could take over a session that was claimed by a clock that is ahead."""
    node = Node()
    one, two = Worker(loop, server, 1, node), Worker(loop, server, 2, node)
    two.shard.wall = lambda: 1.0
    loop.stop_clock()
    one.connect("me")
    there = one.store.find("me")
    epoch = one.registry.epoch_of("me")
    server.kill()
    loop.start_clock()

    assert there is two.connect("me")
    assert two.registry.epoch_of("me") > epoch
    assert 0 == one.registry.epoch_of("me")


def test_connections_of_one_client_take_their_turn(server: RunningRedis, loop: Loop) -> None:
    """Two that come at once would each get a session of their own."""
    loop.stop_clock()
    worker = Worker(loop, server, 1)
    loop.ready(worker.shard.commands)
    comings = [worker.ask("me") for _ in range(MOST_WAITING + 2)]
    loop.until(lambda: all(coming.answers for coming in comings))
    there = worker.store.find("me")

    assert [[None]] + [[there]] * MOST_WAITING + [[CloseReason.SERVER_BUSY]] == [coming.answers for coming in comings]
    assert 0 == worker.claims.counts.waiting


def test_who_asks_for_what_is_still_on_its_way_gets_it(server: RunningRedis, loop: Loop) -> None:
    """A client that connects to three workers in quick succession would be without its session at the last."""
    loop.stop_clock()
    node = Node()
    one, two, three = (Worker(loop, server, number, node) for number in (1, 2, 3))
    one.connect("me")
    there = one.store.find("me")
    loop.ready(two.shard.commands, three.shard.commands)
    node.waiting = []
    second = two.ask("me")
    loop.until(lambda: len(node.asked) == 1)
    third = three.ask("me")
    loop.until(lambda: len(node.asked) == 2)
    node.go_on()

    assert ([there], [there]) == (second.answers, third.answers)
    assert [None, None, there] == [worker.store.find("me") for worker in (one, two, three)]


def test_two_who_ask_each_other_do_not_wait_for_ever(server: RunningRedis, loop: Loop) -> None:
    """A client that comes back to its first worker, while another one still asks that for it, could never connect."""
    loop.stop_clock()
    node = Node()
    one, two = Worker(loop, server, 1, node), Worker(loop, server, 2, node)
    one.connect("me")
    there = one.store.find("me")
    loop.ready(two.shard.commands)
    node.waiting = []
    away = two.ask("me")
    loop.until(lambda: len(node.asked) == 1)
    back = one.ask("me")
    loop.until(lambda: len(node.asked) == 2)
    node.go_on()

    assert ([CloseReason.SERVER_UNAVAILABLE], [there]) == (away.answers, back.answers)
    assert (there, None) == (one.store.find("me"), two.store.find("me"))
    assert (0, 0) == (one.claims.counts.waiting, two.claims.counts.waiting)
    one.shard.settle()
    two.shard.settle()
    assert owned_by(server, one, "me")


def test_who_waits_for_one_that_is_turned_away_is_turned_away_as_well(server: RunningRedis, loop: Loop) -> None:
    """It would be told that there is no session, begin a second one, and the first would end with all it holds."""
    loop.stop_clock()
    node = Node()
    one, two, three = (Worker(loop, server, number, node) for number in (1, 2, 3))
    one.connect("me")
    there = one.store.find("me")
    loop.ready(two.shard.commands, three.shard.commands)
    node.waiting = []
    second = two.ask("me")
    loop.until(lambda: len(node.asked) == 1)
    third = three.ask("me")
    loop.until(lambda: len(node.asked) == 2)
    back = one.ask("me")
    loop.until(lambda: len(node.asked) == 3)
    # The third asks the second, which waits; the second asks the first, which asks the third.
    node.waiting = [node.waiting[1], node.waiting[0], node.waiting[2]]
    node.go_on()

    refused = [CloseReason.SERVER_UNAVAILABLE]
    assert (refused, refused, [there]) == (second.answers, third.answers, back.answers)
    assert [there, None, None] == [worker.store.find("me") for worker in (one, two, three)]


def test_a_session_of_a_time_when_nobody_could_be_asked_goes(server: RunningRedis, loop: Loop) -> None:
    """Two workers would serve one client id after an outage [MQTT-3.1.4-3]."""
    loop.stop_clock()
    node = Node()
    one, two = Worker(loop, server, 1, node), Worker(loop, server, 2, node)
    one.connect("me")
    former = one.store.find("me")
    one.shard.settle()
    loop.ready(two.shard.commands)
    two.store.keep(session("me"))
    two.registry.hold_locally("me", two.registry.next_epoch("me"), ANONYMOUS, b"")
    two.shard.settle()

    assert (None, []) == (one.store.find("me"), two.evicted)
    assert former is not two.store.find("me")
    assert owned_by(server, two, "me")


def test_who_is_alone_asks_nobody(server: RunningRedis, loop: Loop) -> None:
    """The clients of a node with one worker would wait for Redis for nothing, and be refused without it."""
    loop.stop_clock()
    alone = Worker(loop, server, 1, alone=True)
    coming = alone.ask("me", lasting=True)

    assert [None] == coming.answers
    alone.shard.settle()
    assert owned_by(server, alone, "me")
    there = alone.store.find("me")
    assert there is not None
    alone.store.forget(there)
    alone.shard.settle()
    assert [] == owner(server, "me")


@pytest.mark.parametrize("clean_start", [False, True])
@pytest.mark.parametrize("away", [False, True])
def test_a_session_on_another_worker_stays_with_its_user(
    server: RunningRedis, loop: Loop, away: bool, clean_start: bool
) -> None:
    """A user could take any session over, or end it, by connecting to the right worker."""
    node = Node()
    one, two = Worker(loop, server, 1, node), Worker(loop, server, 2, node)
    assert one.connect("me", user="alice") is None
    here = one.store.find("me")
    assert here is not None
    here.will = SessionWill(Will(b"w", b"of alice", 0, False, {}))
    one.registry.replace_will("me", b"0 of alice")
    one.shard.settle()
    if away:
        server.kill()
        loop.until(lambda: two.shard.commands.state != READY and one.shard.commands.state != READY)
    thief = two.ask("me", user="bob", clean_start=clean_start)
    loop.until(lambda: bool(thief.answers))

    assert [CloseReason.CLIENT_ID_OF_OTHER_USER] == thief.answers
    assert (here, None) == (one.store.find("me"), two.store.find("me"))
    assert here is one.connect("me", user="alice")
    if not away:
        one.shard.settle()
        two.shard.settle()
        assert owned_by(server, one, "me")
        assert owner_tag(b"alice") == owner(server, "me")[4]
        assert 1 == two.claims.counts.of_other_users


def test_a_refused_claim_leaves_no_trace_on_its_own_worker(server: RunningRedis, loop: Loop) -> None:
    """The will of another user would be stored in place of that of the session, and published for it."""
    worker = Worker(loop, server, 1)
    assert worker.connect("me", user="alice") is None
    worker.shard.settle()
    before = owner(server, "me")

    assert CloseReason.CLIENT_ID_OF_OTHER_USER is worker.connect("me", user="bob")
    worker.shard.settle()
    assert before == owner(server, "me")
    assert 1 == worker.registry.statistics.claims


def test_an_id_whose_session_has_just_ended_on_another_worker_is_free(server: RunningRedis, loop: Loop) -> None:
    """Redis hears of the end later than the next user connects, who would be refused for no reason."""
    node = Node()
    one, two = Worker(loop, server, 1, node), Worker(loop, server, 2, node)
    assert one.connect("me", user="alice") is None
    here = one.store.find("me")
    assert here is not None
    one.store.forget(here)

    assert two.connect("me", user="bob") is None
    assert two.store.find("me") is not None
