# What a session keeps for diagnostics: decisions about its client, and messages that the client did not get.
from broker.metrics.counters import Counters
from broker.session.decisions import Decisions
from broker.session.limits import SessionLimits
from broker.session.losses import Losses
from broker.session.queue import Holder


class SessionDiagnostics(Holder):
    """The part of a session that is kept for diagnostics and gap notices; session.py has the rest."""

    def __init__(self, limits: SessionLimits, counters: Counters) -> None:
        self.decisions: Decisions | None = None  # the latest of overload protection and quotas about this client
        self.losses: Losses | None = None  # messages that were not delivered
        self._limits = limits
        self._counters = counters

    def note(self, kind: int, reason: str, now: float) -> bool:
        """Remember a decision about the client, *kind* as in overload/admit.py; false if it repeats the latest one."""
        self.decisions = self.decisions or Decisions()
        return self.decisions.add(kind, reason, now)

    def lost(self, topic: bytes) -> None:
        losses = self.losses
        if losses is None:
            losses = self.losses = Losses()
        losses.named += 1
        if topic is not losses.latest:
            losses.name(topic)

    @property
    def drops(self) -> dict[str, int] | None:
        """Messages that were not delivered, by the label of a DropReason; None if there were none."""
        return (None if self.losses is None else self.losses.counts()) or None
