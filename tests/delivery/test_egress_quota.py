# The egress quota: when the limit of an outbox closes and opens, and who goes on first.
from math import inf

from broker.config.schema import ClusterQuota, Quotas, QuotaScope
from broker.delivery.egress_quota import AT_ONCE, EgressQuota
from broker.delivery.outbox import Outbox
from broker.overload.client import ProtectedClient
from broker.reasons import DropReason, PauseReason
from tests.overload.protected import Protected, reactor

ONE_A_SECOND = Quotas(session=QuotaScope(outgoing_messages="1:1"), reserve=0.0)


class Egress:
    """An egress quota, and the readers that it applies to."""

    def __init__(self, quotas: Quotas = ONE_A_SECOND) -> None:
        self.protected = Protected(quotas=quotas)
        self.looks: list[float] = []
        self.quota = EgressQuota(self.protected.pauses, self.protected.log, self.clock, self.looks.append)

    def clock(self) -> float:
        return self.protected.now

    def reader(self, name: str) -> ProtectedClient:
        reader = self.protected.client(name)
        self.quota.arrive(reader, self.outbox(reader))
        return reader

    def outbox(self, reader: ProtectedClient) -> Outbox:
        return self.protected.outbox(reader)

    def went_on(self) -> list[str]:
        """The readers that were told to go on since the last call, in that order."""
        names = {connection: client.client_id for client, connection in self.protected.connections.items()}
        found = [names[stream] for stream in reactor().drained if stream in names]
        reactor().drained.clear()
        return found

    def send(self, reader: ProtectedClient) -> DropReason | None:
        """Deliver one message to *reader*, if that is allowed."""
        limit = self.outbox(reader).egress_limit
        assert limit is not None
        refusal = limit.refusal()
        if refusal is None:
            limit.charge(1, 10)
        return refusal

    def advance(self, seconds: float) -> float:
        self.protected.now += seconds
        return self.quota.tick(self.protected.now)


def test_a_limit_closes_when_the_quota_is_used_up_and_opens_again() -> None:
    """A client would be sent more than it may, or nothing any more."""
    egress = Egress()
    reader = egress.reader("reader")
    assert None is egress.send(reader)
    assert DropReason.QUOTA_SESSION_OUTGOING is egress.send(reader)
    assert {PauseReason.QUOTA_SESSION_OUTGOING.label: 1} == egress.protected.pauses.paused()
    assert egress.looks  # otherwise nothing would open it
    egress.advance(0.9)
    assert [] == egress.went_on()
    egress.advance(0.2)

    assert ["reader"] == egress.went_on()
    assert {} == egress.protected.pauses.paused()
    assert None is egress.send(reader)


def test_a_client_is_logged_once_for_the_same_reason() -> None:
    """A subscriber over its quota would write a line for each second."""
    egress = Egress()
    reader = egress.reader("reader")
    for _ in range(3):
        egress.send(reader)
        egress.send(reader)
        egress.advance(1.1)

    assert ["client_throttled"] == egress.protected.log.events()


def test_the_client_that_has_waited_longest_goes_on_first() -> None:
    """Of clients that share a quota some would never be sent anything."""
    shared = Quotas(cluster=ClusterQuota(outgoing_messages="1:1"), reserve=0.0)
    egress = Egress(shared)
    readers = [egress.reader(name) for name in ("c", "a", "b")]
    egress.send(readers[0])
    for reader in readers:
        egress.protected.now += 0.001
        egress.send(reader)
    egress.advance(1.1)

    assert ["c", "a", "b"] == egress.went_on()


def test_clients_go_on_in_pages() -> None:
    """Ten thousand clients whose quota has room at the same time would hold the loop."""
    egress = Egress()
    for number in range(AT_ONCE + 1):
        reader = egress.reader(f"{number}")
        egress.send(reader)
        egress.send(reader)
    assert egress.protected.now + 1.1 == egress.advance(1.1)  # again at once
    assert AT_ONCE == len(egress.went_on())
    egress.advance(0.0)

    assert 1 == len(egress.went_on())


def test_a_client_with_a_full_outbox_goes_on_when_that_has_drained() -> None:
    """A slow reader would be given more because its quota has room."""
    egress = Egress()
    reader = egress.reader("reader")
    egress.send(reader)
    egress.send(reader)
    egress.outbox(reader).full = True
    egress.advance(1.1)

    assert [] == egress.went_on()


def test_a_client_that_leaves_is_forgotten() -> None:
    """A closed connection would be written to, or its client count as paused for ever."""
    egress = Egress()
    reader = egress.reader("reader")
    egress.send(reader)
    egress.send(reader)
    egress.quota.leave(egress.outbox(reader), egress.protected.now)

    assert (None, {}) == (egress.outbox(reader).egress_limit, egress.protected.pauses.paused())
    assert inf == egress.advance(1.1)
    assert [] == egress.went_on()


def test_a_client_without_an_outgoing_quota_has_no_limit() -> None:
    """Every delivery would ask, and every outbox take the slow path."""
    egress = Egress(Quotas(session=QuotaScope(incoming_messages="1:1")))
    reader = egress.reader("reader")

    assert None is egress.outbox(reader).egress_limit
    assert egress.outbox(reader).writable
