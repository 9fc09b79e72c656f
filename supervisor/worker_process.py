# The process of a worker as the supervisor sees it: what its frames say, and what it is asked.
import mmap
import socket
from collections.abc import Callable
from typing import Any, Final

import trio

from broker.control.frames import (
    WORKER_FRAMES,
    Answer,
    CannotStart,
    Drain,
    Ended,
    FromSupervisor,
    FromWorker,
    LoopStarted,
    NewPeer,
    Ready,
    Report,
    Request,
    StatisticsReport,
)
from broker.worker_id import WorkerId
from supervisor.linked_process import LinkedProcess
from supervisor.process import DEAD, SERVING

ANSWER: Final = 5.0  # seconds that a worker has for an answer
LATE: Final = 2.0  # seconds on top of `drain.timeout` after which a worker that was asked to stop is killed


class NoAnswer(Exception):
    """A worker did not answer, or refused the request. The text is one sentence."""


class WorkerProcess(LinkedProcess[FromSupervisor, FromWorker]):
    def __init__(
        self,
        identity: WorkerId,
        page: mmap.mmap,
        drain_timeout: float,
        received: Callable[["WorkerProcess", FromWorker], None],
        ready: Callable[[], None],
    ) -> None:
        """*page*: the heartbeats' shared memory. *received* is called with each frame that is not handled here."""
        name, shard = f"worker-{identity.shard}", identity.shard
        stop_timeout = drain_timeout + LATE
        super().__init__(name, "broker", WORKER_FRAMES, page, shard, identity.incarnation, ready, stop_timeout)
        self.identity = identity
        self.shard = shard
        self.statistics: Report = {}
        self.others: Report = {}  # the last report on the other workers that was sent to this one
        self.sessions_lost = 0  # as the worker reported at its end
        self.reloaded: str | None = None  # the worker's answer to the last reload: "" or an error
        self._received = received
        self._hand_over = False
        self._asked = 0
        self._answers: dict[int, trio.MemorySendChannel[Answer]] = {}
        self._peers: list[tuple[WorkerProcess, list[socket.socket]]] = []

    def connect_later(self, peer: "WorkerProcess", lanes: list[socket.socket]) -> None:
        """Send *peer* its ends of the *lanes* between the two workers, once the loop of this worker runs.

        Until then *peer* would wait for this worker with each SUBACK and each session transfer.
        """
        self._peers.append((peer, lanes))

    def hand_over(self) -> None:
        """Stop the worker, whose sessions go to the other workers."""
        self._hand_over = True
        self.stop()

    async def ask(self, what: str, arguments: dict[str, Any]) -> Any:
        """The worker's answer to a request. NoAnswer."""
        if self.state != SERVING:
            raise NoAnswer(f"Worker {self.shard} is {self.state} and cannot be asked now.")
        self._asked += 1
        number = self._asked
        answered, answer = trio.open_memory_channel[Answer](1)
        self._answers[number] = answered
        try:
            with trio.fail_after(ANSWER):
                self.send(Request(number, what, arguments))
                found = await answer.receive()
        except trio.TooSlowError:
            raise NoAnswer(f"Worker {self.shard} did not answer within {ANSWER:g} seconds.") from None
        except trio.EndOfChannel:
            raise NoAnswer(f"Worker {self.shard} ended before it answered.") from None
        finally:
            self._answers.pop(number, None)
        if found.error:
            raise NoAnswer(found.error)
        return found.result

    # A LinkedProcess.

    def request_stop(self) -> None:
        self.send(Drain(self._hand_over))

    def close(self) -> None:
        super().close()
        for waiting in self._answers.values():
            waiting.close()
        for _, lanes in self._peers:
            for lane in lanes:
                lane.close()

    def receive(self, frame: FromWorker) -> None:
        match frame:
            case Answer():
                waiting = self._answers.get(frame.number)
                if waiting is not None:
                    waiting.send_nowait(frame)
                return
            case LoopStarted():
                self.loop_started = True
                self._connect_peers()
            case Ready():
                self.became_ready()
            case StatisticsReport():
                self.statistics = frame.report
            case Ended():
                self.sessions_lost = frame.sessions_lost
            case CannotStart():
                self.sentence = frame.sentence
        self._received(self, frame)

    def _connect_peers(self) -> None:
        peers, self._peers = self._peers, []
        for peer, lanes in peers:
            if peer.state == DEAD:
                for lane in lanes:
                    lane.close()
            else:
                peer.send(NewPeer(self.identity), lanes)
