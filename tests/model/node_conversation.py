# The same conversations with a node of several workers, each CONNECT coming to any of them, held against the same
# reference but for what node_reference.py lists. And what happens to nodes: a worker gets no processor for a while,
# comes, or dies; somebody comes to another worker while the others go on talking.
from collections.abc import Iterable
from typing import cast

from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from broker.protocol.connection import Connection
from tests.innode import Node
from tests.inprocess import Broker
from tests.model.conversation import anybody, is_connected, where
from tests.model.node_reference import NodeModel
from tests.model.sessions import Session
from tests.model.vocabulary import WINDOW, Asked, Said, askings, places, talk
from tests.model.worker_conversation import CONFIG, WorkerConversation
from tests.redis_servers import RunningRedis

MOST_WORKERS = 4
MOST_REPORTS = 4  # after which what waits is where it can be taken
SHUTTING_DOWN = 0x8B

turns = st.lists(st.integers(0, 5), max_size=60)  # of the worker of that number; if there is none, somebody speaks


def _lasts(session: Session) -> bool:
    return session.expiry > 0


class NodeConversation(WorkerConversation):
    def __init__(self, redis: RunningRedis, workers: int) -> None:
        self.redis = redis.client()
        self.redis.flushall()
        self.node = Node(workers, CONFIG, redis.address)
        self.reference = NodeModel(WINDOW)
        self.mourned = -1  # the second of the last death
        self.mourning: dict[Broker, list[Broker]] = {}  # whom each has been told of
        super().__init__(self.reference, self.node)

    def home(self, name: str) -> Broker:
        """The worker that has its session."""
        (found,) = [broker for broker in self.node if broker.session(name) is not None]
        return found

    # What happens to workers.

    @precondition(anybody(is_connected))
    @rule(at=places, said=talk)
    def stop_a_worker(self, at: int, said: list[tuple[int, bytes, int]]) -> None:
        """It gets no processor: the others talk, and hear each other; then it goes on."""
        stopped = self.node[at % len(self.node)]
        there = {session.name for session in self.sessions_of(stopped)}
        well = [name for name in self.names(is_connected) if name not in there]
        assume(well)
        stopped.stopped = True
        for who, topic, qos in said:
            self._publish(well[who % len(well)], [Said(topic, qos)])
        self._receive(well)
        self.reference.check_reached(well)
        stopped.stopped = False

    @precondition(lambda self: len(self.node) < MOST_WORKERS)
    @rule()
    def start_a_worker(self) -> None:
        self.node.start()

    @precondition(lambda self: len(self.node) > 1 and self.mourned != self.model.now)
    @rule(at=places, mourner=places)
    def kill_a_worker(self, at: int, mourner: int) -> None:
        dead = self.node[at % len(self.node)]
        names = [session.name for session in self.sessions_of(dead)]
        for name in names:
            self.lines.pop(name, None)
        self.node.kill(dead)
        unmourned = [dead, *self.mourning.pop(dead, [])]
        new = self.node[mourner % len(self.node)]
        self.mourning.setdefault(new, []).extend(unmourned)
        for one in unmourned:
            self.node.publish_wills_of(one, new)
        self.reference.die(names, dead, unmourned)
        self.mourned = self.model.now

    @precondition(lambda self: len(self.node) > 1)
    @rule(at=places)
    def replace_a_worker(self, at: int) -> None:
        """Its clients are told to go, the others get its sessions, and somebody takes its place."""
        leaving = self.node[at % len(self.node)]
        there = self.sessions_of(leaving)
        streams = [cast(Connection, stream).session for stream in leaving.streams()]
        for session in there:
            session.coming = True  # what the wills of the others bring it may get or not
        leaving.lifecycle.stop(self.clock.now)
        self.node.settle()
        for name in [session.client_id for session in streams if session is not None]:
            self._part(name, self.lines.pop(name), SHUTTING_DOWN)
            self.model.lose(name)
        for session in there:
            session.coming = False
            if not session.ended:
                self.reference.move(session.name)
        for session in list(leaving.sessions()):
            leaving.takeovers.offer(session)
        self.node.settle()
        assert 0 == leaving.sessions_here()
        self.node.kill(leaving)
        unmourned = [leaving, *self.mourning.pop(leaving, [])]
        new = self.node.start(leaving.number)
        self.mourning[new] = unmourned
        for one in unmourned:
            self.node.publish_wills_of(one, new)
        self.reference.die([], leaving, unmourned)

    @precondition(lambda self: anybody(_lasts)(self) and anybody(is_connected)(self))
    @rule(name=where(_lasts), at=places, asked=st.none() | askings, said=talk, order=turns)
    def come_while_others_talk(
        self, name: str, at: int, asked: Asked | None, said: list[tuple[int, bytes, int]], order: list[int]
    ) -> None:
        """Nothing is lost, comes twice or in another order while a session moves."""
        others = [other for other in self.names(is_connected) if other != name]
        assume(others)
        session = self.model.sessions[name]
        session.coming = True
        waiting = list(said)

        def meanwhile() -> None:
            for number in order:
                if number < len(self.node):
                    self._turn(self.node[number])
                elif waiting:
                    self._say(others, waiting.pop(0))
            while waiting:
                self._say(others, waiting.pop(0))

        self._connect(name, False, asked or self.asked[name], at, meanwhile)
        session.coming = False

    def _turn(self, broker: Broker) -> None:
        """A slice; what it asks Redis is answered before anything else happens."""
        broker.turn()
        registry_client = broker.registry_client
        if registry_client is not None and registry_client.commands.statistics.waiting:
            self.redis.ping()  # which is answered behind it,
            self.redis.ping()  # and when that was sent

    def teardown(self) -> None:
        self.redis.close()
        super().teardown()

    # After each step.

    def _receive(self, names: Iterable[str] | None = None) -> None:
        super()._receive(names)
        if names is None:
            for _ in range(MOST_REPORTS):
                if not any(broker.backlog.lists for broker in self.node):
                    break
                self.node.look_around()  # what waits at one worker may go to a member of another one
                super()._receive()

    def _connect(self, name, clean, asked, at, meanwhile=None) -> None:  # type: ignore[no-untyped-def]  # as super's
        if name in self.model.sessions and self.home(name) is not self.node[at % len(self.node)]:
            self.reference.move(name)
        super()._connect(name, clean, asked, at, meanwhile)

    def _compare_counts(self) -> None:
        super()._compare_counts()
        assert len(self.model.sessions) == sum(broker.session_count() for broker in self.node)
        for broker in self.node:
            self._compare_knowledge(broker)
        self.node.look_around()

    def _compare_knowledge(self, broker: Broker) -> None:
        """Each worker knows what the clients of the others want, and nothing waits to be told."""
        mesh = broker.mesh
        assert 0 == mesh.pending()
        assert 0 == broker.takeovers.pending()
        assert len(self.node) - 1 == len(mesh.peers)
        groups = list(broker.routes.shared_groups())
        for peer in mesh.peers:
            (there,) = [other for other in self.node if other.identity == peer.worker]
            wanted = [one for session in self.sessions_of(there) for one in session.subscriptions.values()]
            assert {one.filter for one in wanted if not one.share} == set(peer.filters)
            known = [group for group in groups if peer in group.remote]
            members = {(group.share, group.filter): group.remote[peer].members for group in known}
            shared = [(one.share, one.filter) for one in wanted if one.share]
            assert {group: shared.count(group) for group in shared} == members
