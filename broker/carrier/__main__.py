# The carrier as a process: `python -m broker.carrier DESCRIPTOR PARENT`. Only the supervisor starts it.
#
# How it begins is said in control/supervised.py. It is the only process that imports kafka-python, whose calls wait and
# whose clients have threads.
import mmap
import os
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Final, assert_never

import structlog
import trio

from broker.carrier.carrier import Carrier, CarrierUnusable
from broker.config.sources import restored
from broker.control.carrier_frames import (
    TO_CARRIER,
    CarrierAssignment,
    CarrierReady,
    NewWorker,
    Stop,
    ToCarrier,
)
from broker.control.frame_codec import FrameError, encode
from broker.control.frames import CannotStart, LoopStarted, RedisMoved, ReopenLog, StatisticsReport
from broker.control.heartbeat import DRAINING, SERVING, Heartbeat
from broker.control.link import Link
from broker.control.periodic import every
from broker.control.spin import spin
from broker.control.supervised import CANNOT_START, begin, cannot_start, first_frame, lines_to, reopen
from broker.insight.logs import configure

STATISTICS_INTERVAL: Final = 1.0  # seconds
LAST_FRAME_TIMEOUT: Final = 1.0  # seconds


class Process:
    def __init__(self, sock: socket.socket, assignment: CarrierAssignment) -> None:
        """CarrierUnusable."""
        self._lines = structlog.get_logger()
        self._heartbeat = Heartbeat(mmap.mmap(assignment.heartbeat, 0), 0, assignment.incarnation)
        self._heartbeat.stamp(time.monotonic())
        self._assignment = assignment
        self._carrier = Carrier(restored(assignment.config), assignment, self._lines)
        self._stopping = trio.Event()
        self._sentence = ""  # on why it cannot start
        sock.setblocking(False)
        self._link: Link[ToCarrier] = Link(self._carrier.reactor, sock, TO_CARRIER, self._take, self._link_lost)
        self._carrier.collector.start(self._carrier.clock())

    async def serve(self) -> int:
        """Serve until the supervisor says otherwise; the exit code."""
        carrier = self._carrier
        self._link.send(LoopStarted())
        carrier.start(self._tried)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(spin, carrier.loop, self._heartbeat, carrier.clock)
            nursery.start_soon(every, STATISTICS_INTERVAL, self._send_statistics)
            await self._stopping.wait()
            nursery.cancel_scope.cancel()
        self._heartbeat.enter(DRAINING, carrier.clock())
        if self._sentence:
            self._link.send_last(CannotStart(self._sentence), LAST_FRAME_TIMEOUT)
        carrier.stop()
        return CANNOT_START if self._sentence else 0

    def _tried(self, wrong: str) -> None:
        if wrong and self._assignment.required:
            self._sentence = wrong
            self._stopping.set()
            return
        if wrong:
            self._lines.error("log_unusable", why=wrong)
        self._heartbeat.enter(SERVING, self._carrier.clock())  # the limit for silence is one second from now on
        self._link.send(CarrierReady())

    def _take(self, frame: ToCarrier) -> None:
        match frame:
            case NewWorker():
                data, control = (socket.socket(fileno=one) for one in self._link.take_descriptors(2))
                for lane in (data, control):
                    lane.setblocking(False)
                self._carrier.join(frame.worker, data, control)
            case RedisMoved():
                self._carrier.move_redis(frame.address)
            case ReopenLog():
                self._reopen_log()
            case Stop():
                self._stopping.set()
            case CarrierAssignment():
                self._link_lost("a second assignment")
            case _:
                assert_never(frame)

    def _reopen_log(self) -> None:
        try:
            reopen(self._assignment.log_path, self._assignment.log)
        except OSError as error:  # such as a folder that was removed: the former file stays in use
            self._lines.error("log_file_failed", path=self._assignment.log_path, why=error.strerror)

    def _send_statistics(self) -> None:
        if not self._link.owes():  # otherwise reports would pile up while the supervisor is stopped
            self._link.send(StatisticsReport(self._carrier.report()))

    def _link_lost(self, why: str) -> None:
        """The supervisor has ended, or sent a wrong frame: in that case it starts another carrier."""
        self._lines.error("link_lost", why=why)
        os._exit(1)


def main(arguments: Sequence[str]) -> None:
    sock = begin(arguments)
    assignment = first_frame(sock, TO_CARRIER)
    if not isinstance(assignment, CarrierAssignment):
        raise FrameError(f"a frame {type(assignment).__name__} before the assignment")
    values = assignment.config
    about = {"node": assignment.node, "process": "carrier"}
    configure(values["log.level"], values["log.format"], lines_to(assignment.log), about)
    try:
        process = Process(sock, assignment)
    except CarrierUnusable as error:
        cannot_start(sock, encode(CannotStart(str(error))))
    try:
        code = trio.run(process.serve)
    except BaseException as error:
        traceback.print_exc()
        structlog.get_logger().error("carrier_failed", exc_info=error)
        code = 1
    os._exit(code)  # ends threads of Kafka's client, too


if __name__ == "__main__":
    main(sys.argv[1:])
