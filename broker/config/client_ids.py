# The rule that says which client ids a user may have.
#
# Without a rule, an id that has no session belongs to nobody. A rule is a text with %u for the user name:
#   %u       the id is the user name
#   %u-*     the id begins with the user name and a dash
#   dev/%u   the id is "dev/" and the user name
# The text between %u and * separates the user name from the rest. User names must not contain it: the user "a-b" shares
# ids with the user "a" under the rule "%u-*".
from typing import Final

RIGHT: Final = '"", or a rule with %u for the user name, such as "%u" or "%u-*" (with a separator between %u and *)'
USER: Final = "%u"
REST: Final = "*"


class ClientIdRule:
    def __init__(self, text: str) -> None:
        """ValueError, whose text completes "it must be ...": *text* is no rule."""
        self._before, _, behind = text.partition(USER)
        self._open = behind.endswith(REST)
        self._behind = behind.removesuffix(REST)
        if text.count(USER) != 1 or REST in self._before + self._behind or (self._open and not self._behind):
            raise ValueError(RIGHT)

    def allows(self, client_id: str, user: str) -> bool:
        start = self._before + user + self._behind
        return client_id.startswith(start) if self._open else client_id == start

    def assigned(self, user: str, random: str) -> str:
        """An id for a client of *user* that has none; *random* makes it unique where the rule has room for it."""
        start = self._before + user + self._behind
        return start + random if self._open else start
