# The gate of a store: it lets as much pass as is stored in time, and follows what the store carries out.
from broker.config.schema import Overload
from broker.overload.gate import Gate
from broker.store.durable.store_gate import StoreGate

SIZE = 100


class Store:
    """A gate, and when it was told to have opened."""

    def __init__(self) -> None:
        self.opened: list[float] = []
        self.gate = Gate(Overload(), "node/0 store", 1, 0.0)
        self.store = StoreGate(self.gate, lambda gate, now: self.opened.append(now))

    def take(self, count: int, now: float) -> None:
        self.gate.take(count, count * SIZE, now)


def test_what_a_transaction_carries_out_is_done() -> None:
    """The gate would close for ever, or let pass what a server has that stores nothing."""
    store = Store()
    store.take(3, 1.0)
    store.store.sent(1.001)
    store.take(2, 1.002)
    assert 5 == store.gate.count
    store.store.carried_out(1.01)
    assert (2, 2 * SIZE) == (store.gate.count, store.gate.bytes)
    assert [1.01] == store.opened
    store.store.sent(1.02)
    store.store.carried_out(1.03)

    assert (0, 0) == (store.gate.count, store.gate.bytes)


def test_what_needs_not_be_written_is_done_without_a_latency() -> None:
    """Receivers that acknowledge at once would make a store look quick that nobody has asked."""
    store = Store()
    store.take(4, 1.0)
    store.store.needless(1.5)

    assert 0 == store.gate.count
    assert (0.0, 0.0) == (store.gate.delay(1.5), store.gate.capacity()[1])


def test_a_store_that_carries_nothing_out_closes_its_gate() -> None:
    """What waits for it would grow until the memory is used up."""
    store = Store()
    taken = 0
    while store.gate.fits(1, SIZE):
        store.take(1, 1.0)
        store.store.sent(1.0)
        taken += 1
        assert taken < 10_000

    assert not store.gate.open
    assert 2.0 == store.gate.delay(3.0)
    assert [] == store.opened
    store.store.carried_out(3.0)
    assert store.gate.open
    assert [3.0] == store.opened


def test_an_empty_transaction_changes_nothing() -> None:
    """Writes that are no publishes, such as acknowledgements, would count as publishes."""
    store = Store()
    store.store.sent(1.0)
    store.take(1, 1.1)
    store.store.carried_out(1.2)

    assert 1 == store.gate.count
    assert [] == store.opened
