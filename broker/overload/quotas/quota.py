# Quotas: how much a client may publish, receive and subscribe to, alone, with its tenant, and with all clients.
#
# A session has one `Quota`, or None if no limit is configured that concerns it. All limits are tested first, and then
# all are charged or none: a publish that the tenant's quota stops costs the session nothing.
#
# The table OVER_QUOTA says what becomes of a publish over quota. QoS 0 is dropped, as it promises nothing. MQTT 3
# cannot refuse a publish, so its QoS 1 and 2 wait in the client's socket. MQTT 5 is refused with a reason code, and may
# try again. QoS 1 and 2 are alike: a QoS 2 message is no worthier.
#
# What goes to clients is charged after it was sent, a batch at a time (16 messages or 16 KiB at most, or one larger
# message), so an outgoing quota can be overdrawn by one batch, and closes until that is paid. QoS 0 cannot wait there
# for an answer of Redis: while more of a quota is being asked for, one slice of it may be overdrawn in addition, or
# each first message would be dropped.
import math
from typing import Final

from broker.config.rate import Meter, Windows, parse
from broker.config.schema import QuotaScope
from broker.mqtt.packets import V5
from broker.overload.admit import DROP, PAUSE, REFUSE, Publish, Reason, Verdict
from broker.overload.quotas.overrides import Limit
from broker.reasons import DropReason, FilterRefusal, PauseReason, PublishRefusal

# By QoS and by whether the client speaks MQTT 5.
OVER_QUOTA: Final = {
    (0, False): DROP,
    (0, True): DROP,
    (1, False): PAUSE,
    (1, True): REFUSE,
    (2, False): PAUSE,
    (2, True): REFUSE,
}

ONE: Final = 1.0  # message or byte of room, with which a batch may be sent
SESSION_MESSAGES: Final = "QUOTA_SESSION_MESSAGES"
NO_QUOTAS: Final = QuotaScope()


class QuotaExceeded(Verdict):
    """A limit is exceeded, and what becomes of the packet or message that exceeds it."""

    def __init__(self, kind: int, reason: Reason, until: float, allowance: "Allowance") -> None:
        """*until*: when the limit should have room."""
        super().__init__(kind, reason, until)
        self.limit = allowance.text  # the rate as configured: "100:1,5000:60"
        self._name = allowance.name

    def retry_after(self, now: float) -> int:
        """Milliseconds after which to try again, for the user property `retry-after-ms`; at least 1."""
        return max(1, math.ceil((self.until - now) * 1000))

    def words(self) -> str:
        """The reason string of a PUBACK, PUBREC or SUBACK: what is exceeded, and the configured rate."""
        found = PublishRefusal.__members__.get(self._name)
        words = PauseReason[self._name].words if found is None else found.words
        return f"{words} ({self.limit})"

    def drop_reason(self) -> DropReason:
        """The reason for dropping an outgoing QoS 0 message."""
        return DropReason[self._name]

    def filter_refusal(self) -> FilterRefusal:
        """The reason for refusing a filter, in the SUBACK of MQTT 5."""
        return FilterRefusal[self._name]


class Allowance:
    """One limit: what it counts, and the meter that knows how much is left."""

    def __init__(self, name: str, text: str, by_bytes: bool, meter: Meter) -> None:
        """*name*: of the members that stand for the limit in the enums of reasons. *text*: its rate as configured."""
        self.name = name
        self.text = text
        self.by_bytes = by_bytes
        self.meter = meter

    def over(self, kind: int, amount: float, firm: bool, now: float) -> QuotaExceeded:
        """The verdict, as there is no room for *amount*: *kind*, or a pause while Redis is asked for more."""
        meter = self.meter
        until = meter.when(amount, firm, now)
        if meter.may_have_more(firm):
            return QuotaExceeded(PAUSE, PauseReason.QUOTA_ASKED, until, self)
        if kind == DROP:
            return QuotaExceeded(kind, DropReason[self.name], until, self)
        if kind == REFUSE:
            return QuotaExceeded(kind, PublishRefusal[self.name], until, self)
        return QuotaExceeded(kind, PauseReason[self.name], until, self)


class Scope:
    """The limits of one session, of one tenant, or of the cluster."""

    def __init__(self) -> None:
        self.incoming: list[Allowance] = []
        self.outgoing: list[Allowance] = []
        self.filters: list[Allowance] = []

    def add(self, key: str, allowance: Allowance) -> None:
        """Add a limit, which is configured under *key*."""
        if key.startswith("incoming"):
            self.incoming.append(allowance)
        elif key.startswith("outgoing"):
            self.outgoing.append(allowance)
        else:
            self.filters.append(allowance)


class SessionScope(Scope):
    """The limits of one session. An administrator may replace the limit of messages it may publish."""

    def __init__(self) -> None:
        super().__init__()
        self.tenant = ""  # of the client, when it connected last
        self.until = float("inf")  # when the replacement ends; inf: there is none
        self.settings = NO_QUOTAS  # that configure the limits

    def begin(self, settings: QuotaScope) -> None:
        """Have no limits, before those of *settings* are added. A replacement has to be applied again."""
        self.settings = settings
        self.until = float("inf")
        self.incoming = []
        self.outgoing = []
        self.filters = []

    def override(self, limit: Limit, now: float) -> None:
        """Apply the rate of *limit* until *limit* ends."""
        self.until = limit.until
        self._replace(limit.rate, now)

    def restore(self, now: float) -> None:
        """Apply the configured rate again, from *now* or from the end of the replacement."""
        now = min(now, self.until)
        self.until = float("inf")
        if self.settings.incoming_messages:
            self._replace(self.settings.incoming_messages, now)
        else:
            self.incoming = [allowance for allowance in self.incoming if allowance.name != SESSION_MESSAGES]

    def _replace(self, text: str, now: float) -> None:
        """Replace the meter of messages. The new one has at most what the former one had left."""
        former = None
        rest = []
        for allowance in self.incoming:
            if allowance.name == SESSION_MESSAGES:
                former = allowance.meter
            else:
                rest.append(allowance)
        meter = Windows(parse(text), 0.0, 1.0, now, former)
        self.incoming = [Allowance(SESSION_MESSAGES, text, False, meter), *rest]


class Quota:
    """All limits that apply to one session. Counts are messages; bytes are those of packets."""

    def __init__(self, own: SessionScope, shared: list[Scope]) -> None:
        self._own = own
        self._shared = shared
        self._incoming: list[Allowance] = []
        self._outgoing = list(own.outgoing)
        self._filters = list(own.filters)
        for scope in shared:
            self._outgoing += scope.outgoing
            self._filters += scope.filters
        self._combine()

    def test(self, publish: Publish, now: float) -> Verdict | None:
        """None if *publish* is within all limits; it is not charged yet. (See `admit.Quotas`.)"""
        return self.over(publish.qos, publish.version, 1, publish.size, now)

    def charge(self, publish: Publish, now: float) -> None:
        """Charge *publish*, which was tested and is accepted. (See `admit.Quotas`.)"""
        self.take(publish.qos, 1, publish.size, now)

    def over(self, qos: int, version: int, count: int, size: int, now: float) -> QuotaExceeded | None:
        """None if *count* messages of *size* bytes together may pass now."""
        if now >= self._own.until:
            self._end_override(now)
        firm = qos > 0
        for allowance in self._incoming:
            amount = float(size if allowance.by_bytes else count)
            if allowance.meter.room(firm, now) < amount:
                over = allowance.over(OVER_QUOTA[(qos, version == V5)], amount, firm, now)
                if allowance.name == SESSION_MESSAGES and self._own.until < over.until:
                    over.until = self._own.until  # the limit that an administrator has set ends before there is room
                return over
        return None

    def fitting(self, count: int, longest: int, now: float) -> int:
        """How many of *count* QoS 0 messages, each of at most *longest* bytes, may pass now.

        `over()` says what becomes of the next one.
        """
        if now >= self._own.until:
            self._end_override(now)
        for allowance in self._incoming:
            each = float(longest) if allowance.by_bytes else 1.0
            room = allowance.meter.room(False, now)
            if room < each * count:
                count = max(0, int(room / each))
        return count

    def take(self, qos: int, count: int, size: int, now: float) -> None:
        """Charge *count* messages of *size* bytes together."""
        for allowance in self._incoming:
            allowance.meter.take(float(size if allowance.by_bytes else count), qos > 0, now)

    def take_will(self, qos: int, size: int, now: float) -> DropReason | None:
        """Charge the will of the client, of *size* bytes; or the reason to drop it, as a will can neither wait nor be
        refused. Nor can it wait for an answer of Redis: until that comes, wills may overdraw one slice.
        """
        if now >= self._own.until:
            self._end_override(now)
        firm = qos > 0
        for allowance in self._incoming:
            meter = allowance.meter
            amount = float(size) if allowance.by_bytes else ONE
            room = meter.room(firm, now)
            if room < amount and not (room > -meter.capacity and meter.may_have_more(firm)):
                return DropReason[allowance.name]
        self.take(qos, 1, size, now)
        return None

    def incoming(self, now: float) -> list[tuple[str, str, float]]:
        """The limits on publishes: (name, rate as configured, room for QoS 1 and 2 now)."""
        return [(allowance.name, allowance.text, allowance.meter.room(True, now)) for allowance in self._incoming]

    def limits_outgoing(self) -> bool:
        """Whether a limit applies to what the client is sent."""
        return bool(self._outgoing)

    def over_outgoing(self, now: float) -> QuotaExceeded | None:
        """None if the client may be sent a batch; else a PAUSE."""
        for allowance in self._outgoing:
            meter = allowance.meter
            room = meter.room(True, now)
            if room < ONE and not (room > -meter.capacity and meter.may_have_more(True)):
                return allowance.over(PAUSE, ONE, True, now)
        return None

    def take_outgoing(self, count: int, size: int, now: float) -> None:
        """Charge a batch of *count* messages, which was sent."""
        for allowance in self._outgoing:
            allowance.meter.take(float(size if allowance.by_bytes else count), True, now)

    def over_filters(self, count: int, now: float) -> QuotaExceeded | None:
        """None if *count* filters may be subscribed to now; else a PAUSE.

        A client of MQTT 5 is paused only for QUOTA_ASKED; each filter over the quota is refused with
        `filter_refusal()`. A SUBSCRIBE with more filters than the quota ever has passes when the quota is full, and
        overdraws it.
        """
        for allowance in self._filters:
            amount = min(float(count), allowance.meter.capacity)
            if allowance.meter.room(True, now) < amount:
                return allowance.over(PAUSE, amount, True, now)
        return None

    def take_filters(self, count: int, now: float) -> None:
        """Charge *count* filters, which are subscribed to."""
        for allowance in self._filters:
            allowance.meter.take(float(count), True, now)

    def override(self, limit: Limit | None, now: float) -> None:
        """Apply *limit* from now on; None: the configuration alone."""
        if now >= self._own.until:  # end the former limit at its own time: afterwards the configured rate counts
            self._end_override(now)
        if limit is not None and limit.rate and now < limit.until:
            self._own.override(limit, now)
            self._combine()
        elif self._own.until != float("inf"):
            self._end_override(now)

    def _end_override(self, now: float) -> None:
        self._own.restore(now)
        self._combine()

    def _combine(self) -> None:
        self._incoming = list(self._own.incoming)
        for scope in self._shared:
            self._incoming += scope.incoming
