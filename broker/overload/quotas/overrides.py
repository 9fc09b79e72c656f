# Limits of single clients that an administrator has set: another rate, or exemption from overload protection.
#
# Each limit says who set it, when and why, and ends by itself: a limit that was set in a hurry does not stay for years.
# The table is bounded, and a full table refuses a new limit: dropping another limit for it would surprise both
# administrators. The owner of the table logs what was set, removed and expired; that log is the audit.
from typing import Any, Final

from broker.config.rate import parse

MOST: Final = 1000  # limits; the first frame to each worker has all of them
LONGEST: Final = 30 * 86_400.0  # seconds until a limit ends; a permanent limit belongs into the configuration
LONGEST_REASON: Final = 200  # characters
LONGEST_ID: Final = 4096  # bytes of a client id: four times the default of limits.client_id_bytes


class OverrideError(Exception):
    """A limit cannot be set. The text is one sentence: what is wrong and what would be right."""


class Limit:
    """The limit of one client, which replaces the configured one."""

    def __init__(
        self,
        client_id: str,
        rate: str,
        exempt: bool,
        until: float,
        *,
        seconds: float,
        by: str,
        reason: str,
        made: float,
    ) -> None:
        """*rate*: of messages that the client may publish, in place of the session quota; "": no change. RateError.

        *exempt*: overload protection does not throttle the client; quotas still apply. *until*: by the clock of `now`.
        *seconds* (the duration that was asked for), *by*, *reason* and *made* (Unix time) are for people.
        """
        rate = rate.replace(" ", "")
        if rate:
            parse(rate)
        self.client_id = client_id
        self.rate = rate
        self.exempt = exempt
        self.until = until
        self.seconds = seconds
        self.by = by
        self.reason = reason
        self.made = made

    def described(self) -> dict[str, Any]:
        """All fields except `until`, for a file, a frame or an answer."""
        return {
            "client": self.client_id,
            "rate": self.rate,
            "exempt": self.exempt,
            "seconds": self.seconds,
            "by": self.by,
            "reason": self.reason,
            "made": self.made,
        }


def limit_from(facts: dict[str, Any], until: float) -> Limit:
    """The limit that `described()` has described; *until* by the clock of `now`. RateError."""
    return Limit(
        facts["client"],
        facts["rate"],
        facts["exempt"],
        until,
        seconds=facts["seconds"],
        by=facts["by"],
        reason=facts["reason"],
        made=facts["made"],
    )


class Overrides:
    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._limits: dict[str, Limit] = {}

    def check(self, limit: Limit, now: float) -> None:
        """OverrideError: *limit* cannot be set."""
        client = limit.client_id
        if not _is_id(client):
            raise OverrideError(
                f"No limit can be set for {client!r}: a client id has 1 to {LONGEST_ID} bytes of UTF-8."
            )
        if not limit.rate and not limit.exempt:
            raise OverrideError(f"The limit of {client} changes nothing: give it a rate, or exempt it.")
        if not 0.0 < limit.until - now <= LONGEST:
            raise OverrideError(f"The limit of {client} must end within {LONGEST / 86_400:g} days.")
        if not limit.reason.strip() or len(limit.reason) > LONGEST_REASON or not _is_text(limit.reason):
            raise OverrideError(f"The limit of {client} needs a reason of 1 to {LONGEST_REASON} characters.")
        if self.get(client, now) is None and len(self.limits(now)) >= self._most:
            raise OverrideError(f"{self._most} clients have a limit already: drop one, or change the configuration.")

    def set(self, limit: Limit, now: float) -> None:
        """Apply *limit* from now on, in place of a former limit of its client. OverrideError."""
        self.check(limit, now)
        self._limits[limit.client_id] = limit

    def drop(self, client_id: str, now: float) -> Limit | None:
        """Remove the limit of *client_id* before its end, and return it."""
        limit = self.get(client_id, now)
        if limit is not None:
            del self._limits[client_id]
        return limit

    def get(self, client_id: str, now: float) -> Limit | None:
        """The limit of *client_id* that applies now."""
        limit = self._limits.get(client_id)
        return limit if limit is not None and now < limit.until else None

    def limits(self, now: float) -> list[Limit]:
        """All limits that apply now, the next to end first."""
        return sorted([limit for limit in self._limits.values() if now < limit.until], key=_end_of)

    def forget_ended(self, now: float) -> list[Limit]:
        """Remove and return the limits that have ended."""
        ended = [limit for limit in self._limits.values() if now >= limit.until]
        for limit in ended:
            del self._limits[limit.client_id]
        return ended


def _end_of(limit: Limit) -> float:
    return limit.until


def _is_id(client_id: str) -> bool:
    return _is_text(client_id) and 1 <= len(client_id.encode()) <= LONGEST_ID


def _is_text(text: str) -> bool:
    """Whether *text* can be encoded: JSON can contain halves of surrogate pairs, and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
