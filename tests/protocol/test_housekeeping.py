# What a worker drops in the course of time.
from broker.auth.authenticator import Authenticator
from broker.auth.guesses import PEACE, Source
from broker.config.schema import Access
from broker.metrics.counters import Counters
from broker.overload.addresses import Addresses
from broker.protocol.housekeeping import Housekeeping
from broker.routing.retained import Retained
from broker.session.message import Message
from broker.session.queue import MessageBudget
from tests.inprocess import Clock
from tests.session.receiver import PLENTY, Receiver, message


def _ignore(*anything: object) -> None:
    pass


def test_expired_and_old_entries_are_dropped() -> None:
    """The memory of a worker would grow with each address and each message that it has ever seen."""
    clock = Clock()
    budget = MessageBudget(PLENTY)
    retained, addresses = Retained(10, 10_000, 10), Addresses(0, 1, 1)
    authenticator = Authenticator(Access(), None, Counters(), _ignore, _ignore, clock)
    failures, guesses = authenticator.failures, authenticator.guesses
    retained.put(Message(b"a", b"1", 0, True, b"", clock.now + 5.0), clock.now, "me", 1)
    retained.put(Message(b"b", b"1", 0, True, b"", 0.0), clock.now, "me", 2)
    retained.delete(b"b", 3, clock.now)
    address = addresses.arrive("192.0.2.1:5000", clock.now)
    assert not addresses.too_fast(address, clock.now)
    addresses.leave(address)
    failures.add("192.0.2.2:5000", clock.now)
    source = Source("192.0.2.2:5000", "alice")
    guesses.begin(source, clock.now)
    guesses.wrong(source, clock.now)
    housekeeping = Housekeeping(retained, addresses, authenticator, budget, clock)
    waiting = Receiver(expiry=60, budget=budget).offer(message(b"x", 1, expires=clock.now + 5.0), now=clock.now)

    housekeeping.run()
    assert [b"b"] == retained.deleted()
    assert 1 == waiting.session.waiting()
    assert (1, (0, 1), 1) == (retained.statistics().count, addresses.statistics(), failures.statistics())
    assert (1, 1, 1, 0) == guesses.statistics()
    clock.now += PEACE + 1.0
    housekeeping.run()
    assert 0 == waiting.session.waiting()

    assert [] == retained.deleted()
    assert (0, (0, 0), 0) == (retained.statistics().count, addresses.statistics(), failures.statistics())
    assert (0, 0, 0, 0) == guesses.statistics()
