# One process of a load: it connects its clients, waits for the common start, publishes, receives the remaining
# messages, and sends its result to the conductor (conductor.py) through a pipe. It ends when the conductor closes the
# pipe.
#
#   to the conductor     ("connected", count)... or ("failed", sentence), ("progress", Progress)..., ("result", Result)
#   from the conductor   ("start", time in us), ("stop", None): stop publishing, ("finish", None): send the result
import gc
import signal
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Final

from broker.mqtt.packets import Connect
from cli.endpoint import Endpoint
from cli.load.client import STAMP, UP, Client
from cli.load.histogram import Histogram
from cli.load.network import AT_ONCE, Network, now_us
from cli.load.pacing import ClosedPace, Loop, OpenPace, Pace, Windows
from cli.load.plan import KEEP_ALIVE, Part
from cli.load.publisher import Publisher
from cli.load.subscriber import Subscriber

TICK: Final = 50_000  # us between two checks of the pipe
CONNECT_TICK: Final = 1_000  # us between two checks for clients to connect
TIMEOUT: Final = 10.0  # seconds for a connection to be established
PINGS: Final = 3  # per keep alive interval


@dataclass
class Progress:
    """The progress of one process."""

    done: bool  # publishing has ended
    up: int
    sent: int
    expected: int  # deliveries of the sent messages, in all processes
    received: int  # deliveries in this process, without duplicates


@dataclass
class Result:
    """The result of one process; times in us from the start unless noted otherwise."""

    connecting: float = 0.0  # seconds until all clients were up
    seconds: float = 0.0  # of publishing
    sent: int = 0
    overdue: int = 0  # messages that were due but not sent
    delayed: int = 0  # messages that were sent late because the broker was not ready for them
    expected: int = 0  # deliveries of the sent messages, in all processes
    received: int = 0
    duplicates: int = 0
    disordered: int = 0
    foreign: int = 0
    refused: int = 0
    refusal: int = 0
    stalls: int = 0
    connected: int = 0
    lost: int = 0
    first_lost: int = 0
    reconnects: int = 0
    missing: int = 0  # clients without a connection at the end
    bytes_sent: int = 0
    bytes_received: int = 0
    latest: int = 0  # time of the last received message
    cpu: float = 0.0  # seconds, from the start to the result
    busy: float = 0.0  # share of a core that was used while publishing
    waiting: float = 0.0  # share of that time in which the process waited for a core
    why: str = ""  # the cause of the first loss
    connect_times: list[int] = field(default_factory=list)
    latencies: Histogram = field(default_factory=Histogram)
    lateness: Histogram = field(default_factory=Histogram)


class Process:
    def __init__(self, part: Part, endpoint: Endpoint, pipe: Pipe) -> None:
        plan = part.plan
        self._part = part
        self._endpoint = endpoint
        self._pipe = pipe
        self._network = Network(endpoint.dial, TIMEOUT)
        self._latencies = Histogram()
        self._windows = Windows(plan.publishers)
        self._subscribers = [self._subscriber(number) for number in part.subscribers]
        self._filler = b"x" * (plan.payload - STAMP)
        self._publishers = [self._publisher(turn, number) for turn, number in enumerate(part.publishers)]
        self._clients: list[Client] = [*self._subscribers, *self._publishers]
        self._pace: Pace
        if plan.rate and self._publishers:
            self._pace = OpenPace(self._network, self._publishers, part.rate())
        else:
            self._pace = ClosedPace(self._network, self._publishers)
        self._windows.pace = self._pace
        self._loop = Loop(self._network, self._pace)
        self._quota = sum(one.quota for one in self._publishers) if self._publishers else -1  # negative: no end
        self._result = Result()
        self._started = 0  # us
        self._cpu = 0.0  # CPU seconds at the start
        self._waited = 0.0  # seconds of waiting for a core, at the start
        self._pinging = 0  # start of the pings (us)
        self._pings = 0  # number of pings sent

    def run(self) -> None:
        if self._connect():
            self._work()

    def _connect(self) -> bool:
        """Connect all clients; return whether all are up."""
        plan = self._part.plan
        network = self._network
        total = len(self._clients)
        rate = plan.connect_rate * total / (plan.publishers + plan.subscribers) / 1_000_000
        began = reported = now_us()
        begun = 0
        while network.up < total:
            now = now_us()
            due = min(total, int((now - began) * rate) + 1) if rate else total
            while begun < due and network.connecting() < AT_ONCE:
                network.start(self._clients[begun], now)
                begun += 1
            self._loop.work(now + CONNECT_TICK)
            network.maintain(now_us())
            if network.failure is not None:
                self._pipe.send(("failed", self._endpoint.explain(network.failure)))
                return False
            if now - reported >= TICK:
                reported = now
                self._pipe.send(("connected", network.up))
        self._result.connecting = (now_us() - began) / 1_000_000
        self._pipe.send(("connected", network.up))
        return True

    def _work(self) -> None:
        """Run from the last CONNACK to the result."""
        plan = self._part.plan
        self._network.forgiving = True
        starts = 0
        while True:
            now = now_us()
            events = [now + TICK, starts, int(starts + plan.seconds * 1_000_000)]
            self._loop.work(min(event for event in events if event > now))
            now = now_us()
            if starts and not self._started and now >= starts:
                self._started = starts
                self._cpu = time.process_time()
                self._waited = _waited()
                phase = self._part.process / plan.rate if plan.rate else 0.0  # seconds: processes send in turn
                self._pace.start(starts + int(phase * 1_000_000))
            self._network.maintain(now)
            self._ping(now)
            self._pace.maintain(now)
            if self._started and not self._pace.stopped and self._ended(now):
                self._stop(now)
            self._pipe.send(("progress", self._progress()))
            while self._pipe.poll():
                word, value = self._pipe.recv()
                if word == "start":
                    starts = value
                elif word == "stop":
                    self._stop(now)
                else:
                    self._pipe.send(("result", self._finish()))
                    return

    def _progress(self) -> Progress:
        return Progress(
            done=self._result.seconds > 0,
            up=self._network.up,
            sent=self._pace.sent,
            expected=self._pace.expected,
            received=self._windows.received - self._windows.duplicates,
        )

    def _ended(self, now: int) -> bool:
        plan = self._part.plan
        if plan.seconds and now - self._started >= plan.seconds * 1_000_000:
            return True
        return self._quota >= 0 and self._pace.sent == self._quota

    def _stop(self, now: int) -> None:
        """Stop publishing; messages in flight may still arrive."""
        if self._result.seconds:
            return
        result, pace, rate = self._result, self._pace, self._part.rate()
        if isinstance(pace, OpenPace):
            pace.pump(now)  # messages that became due since the last turn
            result.overdue = pace.overdue()
        pace.stop()
        elapsed = max(now - self._started, 1) / 1_000_000 if self._started else 1e-6
        result.busy = (time.process_time() - self._cpu) / elapsed
        result.waiting = (_waited() - self._waited) / elapsed
        result.seconds = elapsed
        if pace.sent == self._quota:  # publishing ended before this check; with a rate, at the time of the next message
            result.seconds = max((pace.latest - self._started) / 1_000_000, pace.sent / rate if rate else 1e-6)

    def _ping(self, now: int) -> None:
        """Send PINGREQ for all connections, spread over the keep alive interval."""
        keep_alive = self._clients[0].keep_alive
        if not keep_alive:
            return
        if not self._pinging:
            self._pinging = now
        due = int((now - self._pinging) / 1_000_000 * PINGS / keep_alive * len(self._clients))
        while self._pings < due:
            client = self._clients[self._pings % len(self._clients)]
            self._pings += 1
            if client.state == UP:
                client.ping()
                self._network.send(client)

    def _finish(self) -> Result:
        result = self._result
        outcome = self._network.outcome
        result.cpu = time.process_time() - self._cpu
        result.sent = self._pace.sent
        result.expected = self._pace.expected
        result.received = self._windows.received
        result.duplicates = self._windows.duplicates
        result.refused = sum(one.refused for one in self._publishers)
        result.refusal = max((one.refusal for one in self._publishers), default=0)
        for one in self._subscribers:
            result.disordered += one.disordered
            result.foreign += one.foreign
            result.latest = max(result.latest, one.latest - self._started)
        result.connected = outcome.connected
        result.connect_times = outcome.connect_times
        result.lost = outcome.lost
        result.first_lost = max(0, outcome.first_lost - self._started) if outcome.lost else 0
        result.reconnects = outcome.reconnects
        result.missing = len(self._clients) - self._network.up
        result.why = "" if outcome.why is None else self._endpoint.explain(outcome.why, talking=True)
        result.bytes_sent = self._network.bytes_sent
        result.bytes_received = self._network.bytes_received
        result.latencies = self._latencies
        if isinstance(self._pace, OpenPace):
            result.delayed = self._pace.delayed
            result.lateness = self._pace.lateness
        elif isinstance(self._pace, ClosedPace):
            result.stalls = self._pace.stalls
        return result

    def _connect_packet(self, kind: str, number: int) -> Connect:
        plan = self._part.plan
        return Connect(
            plan.version,
            f"{plan.client_id}-{kind}{number}",
            keep_alive=KEEP_ALIVE,
            user_name=plan.user,
            password=plan.password,
        )

    def _publisher(self, turn: int, number: int) -> Publisher:
        plan = self._part.plan
        publisher = Publisher(
            self._connect_packet("p", number),
            number,
            plan.topic_of(number),
            plan.qos,
            self._filler,
            plan.run,
            0 if plan.rate else plan.window,
            plan.copies(number),
            self._part.copies(number),
        )
        publisher.quota = plan.quota(number)
        publisher.turn = turn
        self._windows.add(publisher)
        return publisher

    def _subscriber(self, number: int) -> Subscriber:
        plan = self._part.plan
        connect = self._connect_packet("s", number)
        return Subscriber(connect, plan.filter_of(number), plan.qos, plan.run, self._latencies, self._windows)


def run_process(part: Part, endpoint: Endpoint, pipe: Pipe, inherited: list[Pipe]) -> None:
    """Run one process; it ends silently when the conductor is gone.

    *inherited*: copies of the conductor's ends of pipes. They must be closed, or the process never notices its end.
    """
    for other in inherited:
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the conductor handles it
    _wait_exactly()
    gc.freeze()
    gc.disable()  # a collection would add to the measured latencies; there are no cycles to collect
    try:
        Process(part, endpoint, pipe).run()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass


def _waited() -> float:
    """Return the seconds in which this process was runnable but not running; 0 if the kernel does not report them."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _wait_exactly() -> None:
    """Reduce the timer slack of select() from 50 us to a minimum, if the kernel permits it."""
    try:
        Path("/proc/self/timerslack_ns").write_text("1")
    except OSError:
        pass
