# Limits of single clients, applied to a worker: for clients that are here, and for those that come.
from broker.overload.client import ProtectedClient
from broker.overload.quotas.client_overrides import ClientOverrides
from broker.overload.quotas.overrides import Limit
from tests.overload.protected import Protected


class Here:
    """A worker with some clients, and its overrides."""

    def __init__(self, *names: str) -> None:
        self.protected = Protected()
        self.clients: dict[str, ProtectedClient] = {name: self.protected.client(name) for name in names}
        self.overrides = ClientOverrides(self.protected.protection, self.find, lambda: self.protected.now)

    def find(self, client_id: str) -> ProtectedClient | None:
        return self.clients.get(client_id)

    def set(self, name: str, rate: str = "", exempt: bool = False) -> None:
        until = self.protected.now + 60.0
        limit = Limit(name, rate, exempt, until, seconds=60.0, by="root", reason="test", made=0.0)
        self.overrides.change([{**limit.described(), "until": until}], [])


def test_a_limit_applies_at_once_to_a_client_that_is_here() -> None:
    """A client that floods would go on until it connects again."""
    here = Here("noisy", "other")
    here.set("noisy", rate="1:1")
    noisy, other = here.clients["noisy"], here.clients["other"]

    assert noisy.quota is not None
    assert (None, 0.0) == (other.quota, noisy.exempt_until)


def test_a_limit_applies_to_a_client_that_comes_later() -> None:
    """A limit would not hold once its client has gone to another worker."""
    here = Here()
    here.set("late", exempt=True)

    assert here.protected.now + 60.0 == here.protected.client("late").exempt_until


def test_a_client_that_waits_is_judged_again() -> None:
    """A client that is given more would wait for what it may have already."""
    here = Here("slow")
    here.set("slow", rate="1:86400")
    slow = here.clients["slow"]
    here.protected.publish(slow)
    here.protected.publish(slow)
    assert not here.protected.reading(slow)
    here.set("slow", rate="100:1")

    assert here.protected.reading(slow)


def test_the_end_of_a_limit_leaves_nothing() -> None:
    """A limit would hold for ever, or its entry take memory."""
    here = Here("noisy")
    here.set("noisy", rate="1:1", exempt=True)
    here.overrides.change([], ["noisy", "never there"])
    noisy = here.clients["noisy"]

    assert (None, 0.0) == (noisy.quota, noisy.exempt_until)
    assert {} == here.protected.protection.limits
