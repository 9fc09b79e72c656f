# Which tenant a client belongs to.
#
# A rule reads the tenant from the user name or from the client id:
#   user             the user name is the tenant
#   user-prefix:X    what stands before the first X in the user name; user-suffix:X: what stands behind the last X
#   client-prefix:X  the same for the client id; client-suffix:X
# Whom the rule gives no name (no user name, no X in it) belongs to the nameless tenant "": all of them share one
# quota, so nobody gets out of a tenant's quota by leaving its name out. A client chooses its id itself: unless an ACL
# or a certificate ties ids to users, only the rules by user hold against clients that want to be somebody else.
from typing import Final

RIGHT: Final = (
    '"", "user", or "user-prefix:X", "user-suffix:X", "client-prefix:X" or "client-suffix:X" with some text X'
)

_BY_USER: Final = {"user": True, "client": False}


class TenantRule:
    def __init__(self, text: str) -> None:
        """ValueError, whose text completes "it must be ...", if *text* is no rule."""
        kind, _, self._mark = text.partition(":")
        whose, _, part = kind.partition("-")
        whole = text == "user"
        if not whole and not (whose in _BY_USER and part in ("prefix", "suffix") and self._mark):
            raise ValueError(RIGHT)
        self._by_user = _BY_USER[whose]
        self._whole = whole
        self._prefix = part == "prefix"

    def tenant(self, client_id: str, user: str | None) -> str:
        """The tenant of a client; "" is the nameless one."""
        name = (user or "") if self._by_user else client_id
        if self._whole:
            return name
        if self._prefix:
            before, mark, _ = name.partition(self._mark)
            return before if mark else ""
        _, mark, behind = name.rpartition(self._mark)
        return behind if mark else ""
