# The rule that says which tenant a client belongs to.
#
# A rule reads the tenant from the user name or from the client id:
#   user             the user name is the tenant
#   user-prefix:X    the part of the user name before the first X
#   user-suffix:X    the part of the user name behind the last X
#   client-prefix:X  the part of the client id before the first X
#   client-suffix:X  the part of the client id behind the last X
# A client to which the rule gives no name (no user name, or no X in it) belongs to the nameless tenant "". All such
# clients share one quota, so leaving out the tenant's name does not avoid a quota. A client chooses its id itself:
# unless an ACL or a certificate ties ids to users, only rules by user are safe against clients that pretend.
from typing import Final

RIGHT: Final = (
    '"", "user", or "user-prefix:X", "user-suffix:X", "client-prefix:X" or "client-suffix:X" with some text X'
)

_BY_USER: Final = {"user": True, "client": False}


class TenantRule:
    def __init__(self, text: str) -> None:
        """ValueError, whose text completes "it must be ...": *text* is not a rule."""
        kind, _, self._mark = text.partition(":")
        whose, _, part = kind.partition("-")
        whole = text == "user"
        if not whole and not (whose in _BY_USER and part in ("prefix", "suffix") and self._mark):
            raise ValueError(RIGHT)
        self.by_user = _BY_USER[whose]  # not by client id
        self._whole = whole
        self._prefix = part == "prefix"

    def tenant(self, client_id: str, user: str | None) -> str:
        """The tenant of a client; "" is the nameless tenant."""
        name = (user or "") if self.by_user else client_id
        if self._whole:
            return name
        if self._prefix:
            before, mark, _ = name.partition(self._mark)
            return before if mark else ""
        _, mark, behind = name.rpartition(self._mark)
        return behind if mark else ""
