# Workers of other nodes, on paper: what a worker that is looked at hears of them, and what they answer.
#
# Each has the real lanes to that worker and to nobody else; the other ends of its lanes to all other workers are not
# needed to know what the one costs. It keeps to broker/cluster/wire.py: it confirms what it is told, says how much it
# has processed, passes barriers, and has no session that it is asked for.
from collections.abc import Callable

from broker.cluster import wire
from broker.cluster.lane_message import CONTROL, DATA, LaneMessage, decode
from broker.cluster.lane_pair import BEGUN_ANEW, LanePair
from broker.cluster.takeover_frames import ANSWER, ASK, NOTHING, SWITCH
from broker.mqtt.encode import encode
from broker.mqtt.fields import read_length
from broker.mqtt.packets import V311, Publish
from broker.overload.credits import UNKNOWN
from broker.worker_id import WorkerId

CHANGES = (wire.GAINED, wire.LOST, wire.GAINED_DURABLE, wire.LOST_DURABLE, wire.MEMBERS, wire.SYNC)


class PaperWorker:
    def __init__(self, worker: WorkerId, send: Callable[["PaperWorker", bytes], None]) -> None:
        """*send* publishes a message on the lane of the worker that is looked at."""
        self.worker = worker
        self.heard: dict[int, int] = {}  # frames by their kind
        self.filters: list[bytes] = []  # that it has subscribers for
        self.switches = 0
        self._send = send
        self._epoch = 0
        self._now = 0.0
        self._input = {DATA: b"", CONTROL: b""}
        self._sequence = 0
        self.open()

    def open(self) -> None:
        """Begin the lanes (anew)."""
        self._epoch += 1
        self.pair = LanePair(self.worker.incarnation, self._epoch)
        self._input = {DATA: b"", CONTROL: b""}
        self._processed = self._written = 0
        self._taken = self._confirmed = 0
        self.pair.control.write(wire.frame(wire.ALL_TOLD))
        self._write(wire.DATA_HEAD + wire.frame(wire.ALL_RETAINED))

    # What it does by itself.

    def subscribe(self, filter: bytes) -> None:
        self._sequence += 1
        self.filters.append(filter)
        self.pair.control.write(wire.change(wire.GAINED, self._sequence, filter))
        self._flush(self._now)

    def unsubscribe(self) -> None:
        self._sequence += 1
        self.pair.control.write(wire.change(wire.LOST, self._sequence, self.filters.pop(0)))
        self._flush(self._now)

    def publish(self, topic: bytes, payload: bytes) -> None:
        """To a subscriber of the worker that is looked at."""
        self._write(encode(Publish(topic, payload, 0), V311))
        self._flush(self._now)

    def take_over_from(self, owner: int) -> None:
        """A session has come here from the worker with the incarnation *owner*: all are to mark their messages."""
        self.switches += 1
        self.pair.control.write(wire.frame(wire.SWITCH, SWITCH.pack(self.switches, owner)))
        self._flush(self._now)

    # Lanes.

    def tick(self, now: float) -> float:
        """Do what is due; when that is again."""
        self._now = now
        due = self.pair.tick(now)
        self._flush(now)
        return min(due, self.pair.due())

    def connected(self, now: float) -> None:
        self._now = now
        self.pair.connected(now)
        self._flush(now)

    def receive(self, payload: bytes, now: float) -> None:
        self._now = now
        message: LaneMessage = decode(payload)
        if self.pair.take(message, now) == BEGUN_ANEW:
            self.open()
            return
        for part in self.pair.arrived:
            self._input[part.lane] += part.data
        self._take_control()
        self._take_data()
        self._flush(now)

    def _write(self, data: bytes) -> None:
        self._written += len(data)
        self.pair.data.write(data)

    def _flush(self, now: float) -> None:
        while (message := self.pair.next_message(now)) is not None:
            self._send(self, message)

    def _take_control(self) -> None:
        data, position = self._input[CONTROL], 0
        while len(data) - position >= 4:
            stop = position + 4 + int.from_bytes(data[position : position + 4], "big")
            if stop > len(data):
                break
            self._take(data[position + 4], data[position + wire.HEAD : stop])
            position = stop
        self._input[CONTROL] = data[position:]
        if self._taken != self._confirmed:
            self._confirmed = self._taken
            self.pair.control.write(wire.confirmed(self._taken, self._written))

    def _take(self, kind: int, body: bytes) -> None:
        self.heard[kind] = self.heard.get(kind, 0) + 1
        if kind in CHANGES:
            self._taken = wire.read_number(body) or self._taken
        elif kind == wire.ASK:
            answer = ANSWER.pack(ASK.unpack_from(body)[0], NOTHING, 0, UNKNOWN)
            self.pair.control.write(wire.frame(wire.ANSWER, answer))

    def _take_data(self) -> None:
        data, position = self._input[DATA], 0
        while position < len(data):
            stop = self._end_of(data, position)
            if stop > len(data):
                break
            if data[position] == wire.FRAME:
                kind, body = data[position + 5], data[position + 6 : stop]
                self.heard[kind] = self.heard.get(kind, 0) + 1
                if kind == wire.BARRIER:
                    self.pair.control.write(wire.frame(wire.PASSED, body))
            position = stop
        self._input[DATA] = data[position:]
        if position:
            self._processed += position
            self.pair.control.write(wire.number(wire.DONE, self._processed))

    def _end_of(self, data: bytes, position: int) -> int:
        """Where what begins at *position* ends; beyond *data*: it is not whole."""
        first = data[position]
        if first >= 0x30:
            length, inside = read_length(data, position + 1, len(data), V311)
            return inside + length
        if first == wire.FRAME:
            return position + 5 + int.from_bytes(data[position + 1 : position + 5], "big")
        return position + (1 + wire.TOKEN_BYTES if first == wire.TOKEN else 1)
