# Children of the supervisor, as small programs of the shell: started, started again, stopped and killed.
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
import trio

from supervisor import restarts
from supervisor.child import Child, keep_in_order
from supervisor.process import DEAD, SERVING, ChildProcess
from supervisor.restarts import CrashLoop, RestartPolicy

PATIENCE = 10.0  # seconds for what should take milliseconds
STOP_TIMEOUT = 1.0  # seconds


class Program(ChildProcess):
    """It is ready when it has made the file *flag*, which is removed when the supervisor has noticed."""

    def __init__(self, script: str, flag: Path, ready: Callable[[], None], cancel_timeout: float) -> None:
        super().__init__(ready, STOP_TIMEOUT, cancel_timeout)
        self.command = ["/bin/sh", "-c", script, "sh", str(flag)]
        self._flag = flag

    def request_stop(self) -> None:
        self.terminate()

    def watchers(self) -> Sequence[Callable[[], Awaitable[None]]]:
        return [self._watch_flag]

    def close(self) -> None:
        self._flag.unlink(missing_ok=True)

    async def _watch_flag(self) -> None:
        while not self._flag.exists():
            await trio.sleep(0.002)
        self.became_ready()
        self._flag.unlink()


READY = 'touch "$1"; '  # behind what has to be set up by then
NOTICED = 'while [ -e "$1" ]; do sleep 0.01; done; '
FOR_EVER = "while :; do sleep 0.01; done"
STOPS_IF_ASKED = f"trap 'exit 0' TERM; {READY}{FOR_EVER}"


class Service(Child[Program]):
    def __init__(self, folder: Path, script: str, events: list[str], name: str = "it", cancel: float = 0.0) -> None:
        super().__init__(RestartPolicy(name, CrashLoop()))
        self.script = script
        self._flag = folder / name
        self._events = events
        self._name = name
        self._cancel_timeout = cancel

    def make(self) -> Program:
        return Program(self.script, self._flag, self._became_ready, self._cancel_timeout)

    def start(self, process: Program) -> None:
        self._events.append(f"start {self._name}")
        process.execute(process.command)

    def ended(self, process: Program) -> None:
        assert DEAD == process.state

    def stopped(self, process: Program) -> None:
        self._events.append(f"stopped {self._name}")

    def died(self, process: Program) -> None:
        self._events.append(f"died {process.how()}")

    def failure(self, process: Program, why: str) -> str:
        return f"{self._name}: {why or 'first start'}"

    def _became_ready(self) -> None:
        self._events.append(f"ready {self._name}")
        self.ready.set()


@pytest.fixture
def events() -> list[str]:
    return []


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "FIRST_PAUSE", 0.001)


def fail(sentence: str) -> None:
    pytest.fail(sentence)


async def test_a_child_that_dies_is_started_again(tmp_path: Path, events: list[str]) -> None:
    """The node would continue without it."""
    child = Service(tmp_path, STOPS_IF_ASKED, events)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child.keep, fail)
            await child.ready.wait()
            assert child.process is not None
            os.kill(child.process.pid, signal.SIGSEGV)
            while events.count("ready it") < 2:
                await trio.sleep(0.002)
            child.stop()

    assert ["start it", "ready it", "died signal SIGSEGV", "start it", "ready it", "stopped it"] == events
    assert 1 == child.deaths


async def test_a_child_that_does_not_stop_is_killed(tmp_path: Path, events: list[str]) -> None:
    """`weir stop` would wait for ever."""
    child = Service(tmp_path, f"trap '' TERM; {READY}{FOR_EVER}", events)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child.keep, fail)
            await child.ready.wait()
            child.stop()

    assert child.process is not None
    assert ("died signal SIGKILL", "it did not end in time") == (events[-1], child.process.killed_because)


@pytest.mark.parametrize("script", ["exit 3", "kill -9 $$"])
async def test_a_child_that_never_was_ready_fails(tmp_path: Path, events: list[str], script: str) -> None:
    """`weir start` would try for ever what cannot succeed."""
    sentences: list[str] = []
    with trio.fail_after(PATIENCE):
        await Service(tmp_path, script, events).keep(sentences.append)

    assert ["it: first start"] == sentences
    assert ["start it", f"died {'exit code 3' if 'exit' in script else 'signal SIGKILL'}"] == events


async def test_a_child_in_a_crash_loop_fails(tmp_path: Path, events: list[str]) -> None:
    """A node whose child dies again and again would look healthy."""
    sentences: list[str] = []
    with trio.fail_after(PATIENCE):
        await Service(tmp_path, f"{READY}{NOTICED}exit 3", events).keep(sentences.append)

    assert ["it: workers died 10 times within 60 seconds"] == sentences
    assert 10 == events.count("ready it")


async def test_a_program_that_cannot_be_executed_is_a_death(tmp_path: Path, events: list[str]) -> None:
    """An upgrade that removes the program of a running server would end the node with a traceback."""
    child = Service(tmp_path, STOPS_IF_ASKED, events)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child.keep, fail)
            await child.ready.wait()
            assert child.process is not None
            make = child.make

            def broken() -> Program:
                child.make = make  # type: ignore[method-assign]
                process = make()
                process.command = ["/no/such/program"]
                return process

            child.make = broken  # type: ignore[method-assign]
            os.kill(child.process.pid, signal.SIGKILL)
            while events.count("ready it") < 2:
                await trio.sleep(0.002)
            child.stop()

    assert "died not started: No such file or directory" in events


@pytest.mark.parametrize("cancel_timeout", [0.0, 5.0])
async def test_a_cancelled_child_is_ended(tmp_path: Path, events: list[str], cancel_timeout: float) -> None:
    """A supervisor that ends by an error would leave its children behind, or cut off what they still write."""
    written = tmp_path / "written"
    script = f"trap 'touch {written}; exit 0' TERM; {READY}{FOR_EVER}"
    child = Service(tmp_path, script, events, cancel=cancel_timeout)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child.keep, fail)
            await child.ready.wait()
            nursery.cancel_scope.cancel()

    assert child.process is not None
    assert child.process.code is not None
    assert written.exists() == bool(cancel_timeout)


async def test_what_a_child_needs_is_there_before_it_and_after_it(tmp_path: Path, events: list[str]) -> None:
    """Workers would start without their store, or lose it before they have drained."""
    store = Service(tmp_path, STOPS_IF_ASKED, events, "store")
    slowly = f"trap 'sleep 0.2; exit 0' TERM; {READY}{FOR_EVER}"  # slower than the store, if that were asked as well
    one, other = (Service(tmp_path, slowly, events, name) for name in ("one", "other"))
    stopping = trio.Event()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_in_order, [[store], [], [one, other]], stopping, fail)
            await one.ready.wait()
            await other.ready.wait()
            assert store.process is not None
            assert SERVING == store.process.state
            stopping.set()

    assert ["start store", "ready store"] == events[:2]
    assert {"stopped one", "stopped other"} == {*events[-3:-1]}
    assert "stopped store" == events[-1]


async def test_a_stop_does_not_wait_for_a_child_that_starts(tmp_path: Path, events: list[str]) -> None:
    """Ctrl-C during the load of a large data set would do nothing, or workers be started for it."""
    store, worker = Service(tmp_path, FOR_EVER, events, "store"), Service(tmp_path, STOPS_IF_ASKED, events, "worker")
    stopping = trio.Event()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_in_order, [[store], [worker]], stopping, fail)
            while not events:
                await trio.sleep(0.002)
            stopping.set()

    assert "start store" == events[0]
    assert [] == [event for event in events if "worker" in event]
