# Overrides: other quotas and queue limits for single clients, from the tables [[clients.overrides]] of the file.
#
# A table names its clients by exactly one of `client` (a client id), `user` (a verified user name) and `pattern` (of
# client ids, see patterns.py). The first table that names a client applies to it, alone. A setting that is absent keeps
# its general value; a quota of "" is no limit. `weir limit` overrides a client until a deadline, on top of these.
import tomllib
from dataclasses import dataclass
from typing import Any, Final

from broker.config.patterns import WILDCARDS, is_pattern
from broker.config.values import Flag, Kind, Number, Rates, Size, Text

MOST: Final = 1000  # overrides; the first frame to each worker has all of them
PATTERNS: Final = 100  # of them: each CONNECT is compared with all patterns, which takes about 0.1 ms
LONGEST: Final = 1024  # bytes of a name; the default of limits.client_id_bytes

CLIENT: Final = "client"
USER: Final = "user"
PATTERN: Final = "pattern"
NAMED_BY: Final = (CLIENT, USER, PATTERN)

# The settings of a table, which have the names and meanings of those in [quotas.session], [limits] and [delivery].
_KINDS: Final[dict[str, Kind]] = {
    "incoming_messages": Rates(sizes=False),
    "incoming_bytes": Rates(sizes=True),
    "outgoing_messages": Rates(sizes=False),
    "outgoing_bytes": Rates(sizes=True),
    "subscriptions": Rates(sizes=False),
    "exempt": Flag(),
    "pending": Number(0, 1 << 40),
    "queue": Number(0, 1 << 40),
    "queue_bytes": Size(0, 1 << 60),
    "replay_messages": Number(0, 1 << 40),
    "replay_bytes": Size(0, 1 << 60),
}
QUOTAS: Final = ("incoming_messages", "incoming_bytes", "outgoing_messages", "outgoing_bytes", "subscriptions")
QUEUE_LIMITS: Final = ("pending", "queue", "queue_bytes")

RIGHT: Final = "a list of tables [[clients.overrides]]"


@dataclass(frozen=True, kw_only=True)
class ClientOverride:
    """One table; None: the general value applies."""

    by: str  # CLIENT, USER or PATTERN
    name: str  # the client id, user name or pattern
    incoming_messages: str | None = None
    incoming_bytes: str | None = None
    outgoing_messages: str | None = None
    outgoing_bytes: str | None = None
    subscriptions: str | None = None
    exempt: bool | None = None  # true: credits do not throttle the client
    pending: int | None = None
    queue: int | None = None
    queue_bytes: int | None = None
    replay_messages: int | None = None
    replay_bytes: int | None = None

    def described(self) -> dict[str, Any]:
        """The table as in the file, for frames and answers; `override_from()` makes an override of it again."""
        settings = {key: getattr(self, key) for key in _KINDS if getattr(self, key) is not None}
        return {self.by: self.name, **settings}

    def words(self) -> str:
        """The settings as they are written in the file: `incoming_messages = "5/s", queue = 10`."""
        written = {key: value for key, value in self.described().items() if key != self.by}
        return ", ".join(f"{key} = {_KINDS[key].show(value)}" for key, value in written.items())


def override_from(table: object) -> ClientOverride:
    """The override that *table* describes. ValueError, whose text completes "it must be ..."."""
    if not isinstance(table, dict):
        raise ValueError(RIGHT)
    named = [key for key in NAMED_BY if key in table]
    if len(named) != 1:
        raise ValueError(f"{RIGHT}, each with exactly one of {', '.join(NAMED_BY)}")
    by = named[0]
    name = _name(by, table[by])
    if len(table) == 1:
        raise ValueError(f"{RIGHT}, and the one of {by} {name} has no setting such as queue")
    settings = {}
    for key, value in table.items():
        if key == by:
            continue
        if key not in _KINDS:
            raise ValueError(f"{RIGHT}, and {key} of {by} {name} is no setting there: {', '.join(_KINDS)} are")
        try:
            settings[key] = _KINDS[key].take(value)
        except ValueError as error:
            raise ValueError(f"{RIGHT}, and {key} of {by} {name} must be {error}") from None
    return ClientOverride(by=by, name=name, **settings)


def _name(by: str, name: object) -> str:
    if not isinstance(name, str) or not name.isprintable() or not 1 <= len(name.encode(errors="replace")) <= LONGEST:
        raise ValueError(f"{RIGHT}, each {by} a text of 1 to {LONGEST} bytes")
    if by == PATTERN and not is_pattern(name):
        raise ValueError(f"{RIGHT}, each pattern a client id with up to {WILDCARDS} `*`, and not only `*`")
    return name


class Overrides:
    """The kind of the setting clients.overrides."""

    def take(self, given: object) -> tuple[ClientOverride, ...]:
        """*given*: the tables, or one text with a TOML array of inline tables."""
        if isinstance(given, str):
            try:
                given = tomllib.loads(f"overrides = {given}")["overrides"]
            except tomllib.TOMLDecodeError:
                raise ValueError(f'{RIGHT}, or an array such as [{{client = "a", queue = 5}}]') from None
        if not isinstance(given, list | tuple):
            raise ValueError(RIGHT)
        if len(given) > MOST:
            raise ValueError(f"at most {MOST} tables")
        overrides = tuple(one if isinstance(one, ClientOverride) else override_from(one) for one in given)
        if sum(1 for one in overrides if one.by == PATTERN) > PATTERNS:
            raise ValueError(f"tables of which at most {PATTERNS} have a pattern")
        known: set[tuple[str, str]] = set()
        for one in overrides:
            if (one.by, one.name) in known:  # the second one would never apply
                raise ValueError(f"a list in which {one.by} {one.name} is named once")
            known.add((one.by, one.name))
        return overrides

    def show(self, value: tuple[ClientOverride, ...]) -> str:
        text = Text()
        return "[" + ", ".join(f"{{{one.by} = {text.show(one.name)}, {one.words()}}}" for one in value) + "]"
