# The ACL file: who may publish to and read which topics. Its format is that of Mosquitto's acl_file:
#
#   topic [read|write|readwrite|deny] FILTER     of the user named above; before the first `user`: of anonymous clients
#   user NAME
#   pattern [read|write|readwrite|deny] FILTER   of everybody; %c is the client id and %u the user name
#
# What is not granted is denied, and a `deny` wins over every grant, wherever it stands. (In Mosquitto a user's own
# grant wins over a pattern that denies. Who writes "deny" means it.)
#
# A name is data of the client's, so it must not widen what a pattern means. One that contains "+", "#" or "/", or that
# would make a topic begin with "$", fits into no pattern that grants, and is kept from everything by one that denies.
# The user is one that was verified: what a client merely calls itself has no lines here.
#
# Whoever knows Mosquitto subscribes to "#" and expects what it may read. So a subscription is refused only if nothing
# that it matches could ever be read; all others are granted, and the messages are decided one topic at a time.
#
# The lines are sorted by their first level when they are read. One decision is a look-up for the exact topics and a
# comparison with the few that share its first level; the routes keep the answers.
from typing import Final

from broker.auth.lines import BadLine
from broker.auth.rules import DENY, READ, WRITE, Rule, Rules, pattern, readable
from broker.mqtt.topics import check_filter
from broker.reasons import ProtocolError
from broker.session.principal import Principal

ACCESS: Final = {"read": READ, "write": WRITE, "readwrite": READ | WRITE, "deny": DENY}


class Acl:
    """What an ACL file says. It decides for the routes: see broker/routing/authority.py."""

    def __init__(self) -> None:
        self.generation = 1
        self._anonymous = Rules()
        self._users: dict[bytes, Rules] = {}
        self._everybody = Rules()

    def replace(self, successor: "Acl") -> None:
        """Decide as *successor* from now on; who keeps answers has to forget them."""
        self.generation += 1
        self._anonymous = successor._anonymous
        self._users = successor._users
        self._everybody = successor._everybody

    def may_publish(self, principal: Principal, topic: bytes) -> bool:
        return self._access(principal, topic) & (WRITE | DENY) == WRITE

    def may_receive(self, principal: Principal, topic: bytes) -> bool:
        return self._access(principal, topic) & (READ | DENY) == READ

    def may_subscribe(self, principal: Principal, filter: bytes) -> bool:
        """Whether there can be a topic that *filter* (without a share name) matches and that may be read."""
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
    """The rules in the *text* of an ACL file. BadLine: one of its lines is none."""
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
    if not rest:  # one word alone is a filter, even if it is "read"
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
    """(the first word, what follows it without blanks around it)."""
    words = text.split(None, 1)
    return (words[0] if words else ""), (words[1].strip() if len(words) == 2 else "")
