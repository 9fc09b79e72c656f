# The ACL file: which client may publish to and read which topics. Its format is that of Mosquitto's acl_file:
#
#   topic [read|write|readwrite|deny] FILTER     of the user named above; before the first `user`: of anonymous clients
#   user NAME
#   pattern [read|write|readwrite|deny] FILTER   of all clients; %c is the client id and %u the user name
#
# What is not granted is denied, and a `deny` overrules every grant, wherever it stands. (In Mosquitto a user's own
# grant overrules a pattern that denies. A line that says "deny" should mean it.)
#
# A client chooses its names, so a name must not widen what a pattern means. A name that contains "+", "#" or "/", or
# that would make a topic begin with "$", matches no pattern that grants, and is denied everything by a pattern that
# denies. %u is the verified user name: a name that was only claimed has no lines here.
#
# Users of Mosquitto subscribe to "#" and expect the topics that they may read. So a subscription is refused only if no
# topic that it matches could ever be read; every other subscription is granted, and each topic is decided when a
# message comes.
#
# The lines are sorted by their first level when the file is read. One decision is a look-up among the exact topics and
# a comparison with the few filters that share the first level; routes cache the answers.
from typing import Final

from broker.auth.lines import BadLine
from broker.auth.rules import DENY, READ, WRITE, Rule, Rules, pattern, readable
from broker.mqtt.topics import check_filter
from broker.reasons import ProtocolError
from broker.session.principal import Principal

ACCESS: Final = {"read": READ, "write": WRITE, "readwrite": READ | WRITE, "deny": DENY}


class Acl:
    """The rules of an ACL file. The routes ask it, see broker/routing/authority.py."""

    def __init__(self) -> None:
        self.generation = 1
        self._anonymous = Rules()
        self._users: dict[bytes, Rules] = {}
        self._everybody = Rules()

    def replace(self, successor: "Acl") -> None:
        """Decide as *successor* from now on. Cached answers are obsolete, which `generation` tells."""
        self.generation += 1
        self._anonymous = successor._anonymous
        self._users = successor._users
        self._everybody = successor._everybody

    def may_publish(self, principal: Principal, topic: bytes) -> bool:
        return self._access(principal, topic) & (WRITE | DENY) == WRITE

    def may_receive(self, principal: Principal, topic: bytes) -> bool:
        return self._access(principal, topic) & (READ | DENY) == READ

    def may_subscribe(self, principal: Principal, filter: bytes) -> bool:
        """Whether *filter* (without a share name) can match a topic that *principal* may read."""
        wanted = Rule(filter, READ)
        near = self._everybody.near(wanted)
        own = self._own(principal)
        if own is not None:
            near += own.near(wanted)
        return readable(wanted, near, principal)

    def _own(self, principal: Principal) -> Rules | None:
        return self._anonymous if principal.user is None else self._users.get(principal.user)

    def _access(self, principal: Principal, topic: bytes) -> int:
        levels = topic.split(b"/")
        own = self._own(principal)
        access = 0 if own is None else own.access(topic, levels, principal)
        return access | self._everybody.access(topic, levels, principal)


def parse_acl(text: str) -> Acl:
    """Parse the *text* of an ACL file. BadLine: a line has no meaning."""
    acl = Acl()
    rules = acl._anonymous
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        keyword, rest = _first_word(line)
        if keyword == "user":
            if not rest:
                raise BadLine(number, "`user` without a name: it must be user NAME")
            rules = acl._users.setdefault(rest.encode(), Rules())
        elif keyword == "topic":
            access, filter = _access_and_filter(number, rest)
            rules.add(Rule(filter, access))
        elif keyword == "pattern":
            access, filter = _access_and_filter(number, rest)
            acl._everybody.add(pattern(filter, access))
        else:
            raise BadLine(number, f"unknown word {keyword!r}: it must be user, topic or pattern")
    return acl


def _access_and_filter(number: int, written: str) -> tuple[int, bytes]:
    word, rest = _first_word(written)
    if not rest:  # a single word is a filter, even "read"
        word, rest = "readwrite", word
    if word not in ACCESS:
        raise BadLine(number, f"unknown access {word!r}: it must be read, write, readwrite or deny, and then a filter")
    filter = rest.encode()
    try:
        check_filter(filter)
    except ProtocolError as error:
        right = "levels between '/', '+' as a whole level, '#' as the last one"
        raise BadLine(number, f"{rest!r} is no topic filter ({error.detail}): it must be {right}") from None
    return ACCESS[word], filter


def _first_word(text: str) -> tuple[str, str]:
    """(the first word, the rest without surrounding blanks)."""
    words = text.split(None, 1)
    return (words[0] if words else ""), (words[1].strip() if len(words) == 2 else "")
