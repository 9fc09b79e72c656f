# Lanes between the carrier of a node and its workers: they are made when the loops of both run, whichever came last.
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import structlog

from broker.config.applications import Application, ApplicationRule
from broker.config.schema import Config
from broker.control.carrier_frames import NewWorker, ToCarrier
from broker.control.frames import CannotStart, FromSupervisor, LoopStarted, NewCarrier
from broker.worker_id import WorkerId
from supervisor.carrier import Carrier, CarrierProcess
from supervisor.folder import NodeFolder
from supervisor.logfile import LogFile
from supervisor.node_redis import NodeRedis
from supervisor.process import DEAD


class SilentCarrier(CarrierProcess):
    """A carrier that was never started, and the frames that it would have received, each with its sockets."""

    def __init__(self, carrier: Carrier) -> None:
        super().__init__(carrier._page, carrier.ready.set, carrier._connect_all, carrier._reported)
        self.sent: list[tuple[ToCarrier, list[socket.socket]]] = []
        carrier.process = self

    def send(self, frame: ToCarrier, sockets: Sequence[socket.socket] = ()) -> None:
        self.sent.append((frame, [*sockets]))


class PaperWorker:
    """What the carrier sees of a worker's process."""

    def __init__(self, shard: int, loop_started: bool = True) -> None:
        self.identity = WorkerId("weir", shard, 100 + shard)
        self.loop_started = loop_started
        self.sent: list[tuple[FromSupervisor, list[socket.socket]]] = []

    def send(self, frame: FromSupervisor, sockets: Sequence[socket.socket] = ()) -> None:
        self.sent.append((frame, [*sockets]))


class Scene:
    def __init__(self, folder: Path) -> None:
        config = Config(application=Application(clients=(ApplicationRule(client="a"),)))
        self.workers = [PaperWorker(0), PaperWorker(1)]
        log = structlog.get_logger()
        redis = NodeRedis(config, NodeFolder("weir", str(folder)), log)
        node = NodeFolder("weir", str(folder))
        self.carrier = Carrier(config, node, LogFile(), redis, lambda: self.workers, log)  # type: ignore[arg-type,return-value]

    def close(self) -> None:
        sent = [one for worker in self.workers for one in worker.sent]
        if isinstance(self.carrier.process, SilentCarrier):
            sent += self.carrier.process.sent  # type: ignore[arg-type]
        for _, sockets in sent:
            for one in sockets:
                one.close()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    one = Scene(tmp_path)
    yield one
    one.close()


async def test_a_new_carrier_is_joined_to_all_workers_whose_loops_run(scene: Scene) -> None:
    """A worker could append nothing after the death of a carrier."""
    scene.workers[1].loop_started = False
    process = SilentCarrier(scene.carrier)
    process.receive(LoopStarted())
    assert [NewWorker(scene.workers[0].identity)] == [frame for frame, _ in process.sent]
    assert ([NewCarrier()], []) == ([frame for frame, _ in scene.workers[0].sent], scene.workers[1].sent)
    scene.workers[1].loop_started = True
    scene.carrier.connect(scene.workers[1])  # type: ignore[arg-type]

    assert [0, 1] == [frame.worker.shard for frame, _ in process.sent if isinstance(frame, NewWorker)]
    for (_, theirs), worker in zip(process.sent, scene.workers, strict=True):
        ours = worker.sent[0][1]
        for one, other in zip(ours, theirs, strict=True):  # data to data, control to control
            one.send(b"x")
            assert b"x" == other.recv(1)
    process.mark_dead()


async def test_a_worker_is_not_joined_to_a_carrier_that_does_not_run(scene: Scene) -> None:
    """It would take the first lanes for those of a carrier, and wait for what nobody serves."""
    scene.carrier.connect(scene.workers[0])  # type: ignore[arg-type]
    process = SilentCarrier(scene.carrier)
    scene.carrier.connect(scene.workers[0])  # type: ignore[arg-type]
    process.receive(LoopStarted())
    process.mark_dead()
    assert DEAD == process.state
    scene.carrier.connect(scene.workers[1])  # type: ignore[arg-type]

    assert (1, 1) == (len(scene.workers[0].sent), len(scene.workers[1].sent))


async def test_why_a_carrier_cannot_start_is_one_sentence(scene: Scene) -> None:
    """The node would end without a word that helps."""
    process = SilentCarrier(scene.carrier)
    process.receive(CannotStart("Kafka at k:1 cannot be used: it is away."))
    assert "Kafka at k:1 cannot be used: it is away." == scene.carrier.failure(process, "")
    process.mark_dead("No such file or directory")
    other = SilentCarrier(scene.carrier)
    other.mark_dead("No such file or directory")

    assert "The carrier cannot start: not started: No such file or directory." == scene.carrier.failure(other, "")


async def test_what_a_carrier_is_like_is_told(scene: Scene) -> None:
    """`weir status` would fail while there is no carrier."""
    told = scene.carrier.describe()
    assert ("redis", DEAD, 0, {}) == (told["log"], told["state"], told["pid"], told["report"])
    process = SilentCarrier(scene.carrier)
    assert "starting" == scene.carrier.describe()["state"]
    process.mark_dead()
