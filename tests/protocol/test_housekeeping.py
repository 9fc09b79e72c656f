# What a worker drops in the course of time.
from broker.auth.failures import PEACE, Failures
from broker.overload.addresses import Addresses
from broker.protocol.housekeeping import Housekeeping
from broker.routing.retained import Retained
from broker.session.message import Message
from tests.inprocess import Clock


def test_expired_and_old_entries_are_dropped() -> None:
    """The memory of a worker would grow with each address and each message that it has ever seen."""
    clock = Clock()
    retained, addresses, failures = Retained(10, 1000, 10), Addresses(0, 1, 1), Failures()
    retained.put(Message(b"a", b"1", 0, True, b"", clock.now + 5.0), clock.now, "me", 1)
    retained.put(Message(b"b", b"1", 0, True, b"", 0.0), clock.now, "me", 2)
    retained.delete(b"b", 3, clock.now)
    address = addresses.arrive("192.0.2.1:5000", clock.now)
    assert not addresses.too_fast(address, clock.now)
    addresses.leave(address)
    failures.add("192.0.2.2:5000", clock.now)
    housekeeping = Housekeeping(retained, addresses, failures, clock)

    housekeeping.run()
    assert [b"b"] == retained.deleted()
    assert (1, (0, 1), 1) == (retained.statistics().count, addresses.statistics(), failures.statistics())
    clock.now += PEACE + 1.0
    housekeeping.run()

    assert [] == retained.deleted()
    assert (0, (0, 0), 0) == (retained.statistics().count, addresses.statistics(), failures.statistics())
