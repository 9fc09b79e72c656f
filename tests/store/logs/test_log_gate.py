# The gate of the log: it follows what the log has, and lets nothing pass while there is no carrier.
from broker.config.schema import Overload
from broker.overload.gate import Gate
from broker.store.logs.log_gate import ENOUGH, MOST, LogGate

SIZE = 100


class Door:
    """A gate, and when it was told to have opened."""

    def __init__(self) -> None:
        self.opened: list[float] = []
        self.gate = Gate(Overload(), "node/0 log", 1, 0.0)
        self.log = LogGate(self.gate, lambda gate, now: self.opened.append(now))

    def take(self, count: int, now: float) -> None:
        self.gate.take(count, count * SIZE, now)


def connected() -> Door:
    door = Door()
    door.log.connected(True, 0.0)
    door.opened.clear()
    return door


def test_it_is_closed_without_a_carrier() -> None:
    """Publishes would be accepted and wait in memory, for as long as nobody takes them."""
    door = Door()
    assert not door.gate.open
    door.log.connected(True, 1.0)
    assert (True, [1.0]) == (door.gate.open, door.opened)
    door.log.connected(False, 2.0)

    assert not door.gate.open


def test_a_publish_is_done_when_all_packs_before_its_mark_are_stored() -> None:
    """The gate would close for ever, or let pass what a log has that stores nothing."""
    door = connected()
    door.take(3, 1.0)
    door.log.mark(2, 1.001)
    door.take(2, 1.002)
    door.log.mark(4, 1.003)
    door.log.reach(1, 1.01)
    assert 5 == door.gate.count
    door.log.reach(3, 1.02)
    assert (2, 2 * SIZE, [1.02]) == (door.gate.count, door.gate.bytes, door.opened)
    door.log.reach(4, 1.03)

    assert (0, 0) == (door.gate.count, door.gate.bytes)


def test_a_publish_of_which_nothing_is_appended_is_done() -> None:
    """Publishes to clients that may not read them would fill the gate."""
    door = connected()
    door.take(1, 1.0)
    door.log.mark(0, 1.001)
    door.log.reach(0, 1.001)

    assert 0 == door.gate.count


def test_it_measures_how_long_the_log_takes() -> None:
    """A log that falls behind would raise no level, and `weir why` name no delay."""
    door = connected()
    for number in range(10):
        door.take(1, float(number))
        door.log.mark(number + 1, float(number))
        door.log.reach(number + 1, number + (0.01 if number < 9 else 0.5))

    assert 0.2 < door.gate.delay(9.5)
    assert 0.0 < door.gate.capacity()[1] <= 0.0101


def test_bytes_close_it_until_half_is_stored() -> None:
    """A publish for a thousand topics counts once at the gate, and a thousand times in memory."""
    door = connected()
    door.log.holds(MOST, 1.0)
    assert door.gate.open
    door.log.holds(MOST + 1, 1.1)
    assert not door.gate.open
    door.log.holds(ENOUGH + 1, 1.2)
    assert not door.gate.open
    door.log.holds(ENOUGH, 1.3)
    assert (True, [1.3]) == (door.gate.open, door.opened)
    door.log.holds(MOST + 1, 1.4)
    door.log.connected(False, 1.5)
    door.log.connected(True, 1.6)

    assert not door.gate.open  # the carrier is back, and the bytes are there still
