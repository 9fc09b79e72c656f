# Rules of an ACL file, sorted so that a topic is compared with few of them.
from typing import Final

from broker.session.principal import Principal

READ: Final = 1
WRITE: Final = 2
DENY: Final = 4  # overrules READ and WRITE

ANY_LEVEL: Final = b"+"
ANY_LEVELS: Final = b"#"
CLIENT: Final = b"%c"
USER: Final = b"%u"


class Rule:
    """A topic filter and what it grants. In a pattern the filter contains names of the client."""

    def __init__(self, filter: bytes, access: int) -> None:
        self.filter = filter
        self.access = access
        self.everything = False  # matches topics that begin with "$", too
        self.names_client = False
        self.names_user = False
        self.outline: Rule | None = None  # of a pattern: a rule that matches whatever the names are
        self.levels = filter.split(b"/")
        self.rest = self.levels[-1] == ANY_LEVELS  # the filter ends with "#"
        if self.rest:
            self.levels.pop()

    def wild(self) -> bool:
        """The first level is a wildcard, so the rule matches no topic that begins with "$" [MQTT-4.7.2-1]."""
        return not self.everything and (not self.levels or self.levels[0] == ANY_LEVEL)

    def matches(self, levels: list[bytes]) -> bool:
        """Whether the rule matches the topic with these *levels*."""
        own = self.levels
        count = len(own)
        if len(levels) < count or (len(levels) > count and not self.rest):
            return False
        for i in range(count):
            if own[i] != levels[i] and own[i] != ANY_LEVEL:
                return False
        return not levels[0].startswith(b"$") or not self.wild()

    def meet(self, other: "Rule") -> "Rule | None":
        """A rule that matches exactly the topics that both rules match; None if there are none."""
        if (len(self.levels) > len(other.levels) and not other.rest) or (
            len(self.levels) < len(other.levels) and not self.rest
        ):
            return None
        longer, shorter = (self, other) if len(self.levels) >= len(other.levels) else (other, self)
        common: list[bytes] = list(longer.levels)
        for i in range(len(shorter.levels)):
            if common[i] == ANY_LEVEL:
                common[i] = shorter.levels[i]
            elif shorter.levels[i] != ANY_LEVEL and shorter.levels[i] != common[i]:
                return None
        if common and common[0].startswith(b"$") and (self.wild() or other.wild()):
            return None
        met = Rule(b"/".join(common), self.access)
        met.levels = common
        met.rest = self.rest and other.rest
        return met

    def covers(self, other: "Rule") -> bool:
        """Whether the rule matches every topic that *other* matches."""
        count = len(self.levels)
        if len(other.levels) < count or (not self.rest and (other.rest or len(other.levels) > count)):
            return False
        for i in range(count):
            if self.levels[i] != ANY_LEVEL and self.levels[i] != other.levels[i]:
                return False
        return not (self.wild() and other.levels and other.levels[0].startswith(b"$"))

    def named(self, principal: Principal) -> "Rule | None":
        """The rule with the names of *principal* filled in; None if it does not apply to *principal*."""
        if not self.names_client and not self.names_user:
            return self
        user = principal.user
        if self.names_user and user is None:
            return None  # a rule for users only
        names = [principal.client_id] if self.names_client else []
        if self.names_user and user is not None:
            names.append(user)
        for name in names:
            if b"+" in name or b"#" in name or b"/" in name:
                return self._unnameable()
        # Both names are filled in at once: a client id "%u" must not become the user's name.
        filled = principal.client_id.join([piece.replace(USER, user or b"") for piece in self.filter.split(CLIENT)])
        if filled.startswith(b"$") and not self.filter.startswith(b"$"):
            return self._unnameable()
        return Rule(filled, self.access)

    def _unnameable(self) -> "Rule | None":
        """The rule for a name that does not fit into a filter: None if it grants, everything if it denies."""
        return EVERYTHING_DENIED if self.access & DENY else None


def pattern(filter: bytes, access: int) -> Rule:
    """A rule in which %c and %u stand for the names of the client."""
    rule = Rule(filter, access)
    rule.names_client = CLIENT in filter
    rule.names_user = USER in filter
    if rule.names_client or rule.names_user:
        rule.outline = Rule(filter, access)
        rule.outline.levels = [ANY_LEVEL if CLIENT in level or USER in level else level for level in rule.levels]
    return rule


def _everything_denied() -> Rule:
    rule = Rule(ANY_LEVELS, DENY)
    rule.everything = True
    return rule


EVERYTHING_DENIED: Final = _everything_denied()


class Rules:
    """The rules of one user, of anonymous clients, or of all clients."""

    def __init__(self) -> None:
        self._exact: dict[bytes, int] = {}
        self._below: dict[bytes, list[Rule]] = {}  # rules with a fixed first level, by that level
        self._wide: dict[bytes, list[Rule]] = {}  # those of `_below` that are not in `_exact`
        self._others: list[Rule] = []  # rules that may match any first level

    def add(self, rule: Rule) -> None:
        first = rule.levels[0] if rule.levels else ANY_LEVEL
        named = rule.outline is not None
        if first == ANY_LEVEL or (named and (CLIENT in first or USER in first or rule.access & DENY)):
            self._others.append(rule)
            return
        self._below.setdefault(first, []).append(rule)
        if named or rule.rest or ANY_LEVEL in rule.levels:
            self._wide.setdefault(first, []).append(rule)
        else:
            self._exact[rule.filter] = self._exact.get(rule.filter, 0) | rule.access

    def access(self, topic: bytes, levels: list[bytes], principal: Principal) -> int:
        """READ, WRITE and DENY of all rules that match *topic*, combined."""
        access = self._exact.get(topic, 0)
        wide = self._wide.get(levels[0])
        if wide is not None:
            access |= _together(wide, levels, principal)
        return access | _together(self._others, levels, principal)

    def near(self, wanted: Rule) -> list[Rule]:
        """The rules that may match a topic that *wanted* matches."""
        if wanted.wild():
            near: list[Rule] = []
            for rules in self._below.values():
                near += rules
            return near + self._others
        return self._below.get(wanted.levels[0], []) + self._others


def readable(wanted: Rule, rules: list[Rule], principal: Principal) -> bool:
    """Whether *rules* allow reading a topic that the filter *wanted* matches.

    Each grant is compared with each denial alone: denials that cover a grant only together are not recognised.
    """
    denials: list[Rule] = []
    for rule in rules:
        if rule.access & DENY:
            own = rule.named(principal)
            if own is not None:
                denials.append(own)
    for rule in rules:
        if rule.access & READ:
            own = rule.named(principal)
            common = None if own is None else own.meet(wanted)
            if common is not None and not any(deny.covers(common) for deny in denials):
                return True
    return False


def _together(rules: list[Rule], levels: list[bytes], principal: Principal) -> int:
    access = 0
    for rule in rules:
        if rule.access | access == access:
            continue  # it would add nothing
        outline = rule.outline
        if outline is not None and not rule.access & DENY and not outline.matches(levels):
            continue  # the names need not be filled in
        own = rule.named(principal)
        if own is not None and own.matches(levels):
            access |= rule.access
    return access
