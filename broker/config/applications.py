# What concerns APPLICATION clients. Which clients are of that kind say the tables [[application.clients]] of the file.
#
# A table has one or more parts: `client` and `user` are patterns (patterns.py), of the client id and of the verified
# user name; `listener` is one of LISTENERS; `property` is a user property of CONNECT, NAME=VALUE. All parts of a table
# have to match, and one table that matches is enough.
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from broker.config.fields import choice, duration, flag, number, setting, size
from broker.config.patterns import ANY, WILDCARDS, matches
from broker.config.values import MIB, Text

# Values of application.ack_strategy, with the names of TBMQ.
RETRY_ALL: Final = "RETRY_ALL"
SKIP_ALL: Final = "SKIP_ALL"
# Values of application.shared.
LEASES: Final = "leases"
GROUPS: Final = "groups"

MOST: Final = 100  # tables: each CONNECT is compared with all of them
LONGEST: Final = 1024  # bytes of a part
LISTENERS: Final = ("tcp", "tls", "ws", "wss")
PARTS: Final = ("client", "user", "listener", "property")
RIGHT: Final = "a list of tables [[application.clients]]"


@dataclass(frozen=True, kw_only=True)
class ApplicationRule:
    """One table; "": it does not have that part."""

    client: str = ""
    user: str = ""
    listener: str = ""
    property: str = ""

    def names(self, client_id: str, user: str | None, listener: str, properties: Sequence[tuple[str, str]]) -> bool:
        """Whether it names a client. *properties*: of its CONNECT."""
        if self.client and not matches(self.client, client_id):
            return False
        if self.user and (user is None or not matches(self.user, user)):
            return False
        if self.listener and self.listener != listener:
            return False
        name, _, value = self.property.partition("=")
        return not self.property or (name, value) in properties

    def described(self) -> dict[str, str]:
        """The table as in the file, for frames and answers; `rule_from()` makes a rule of it again."""
        return {part: getattr(self, part) for part in PARTS if getattr(self, part)}


def rule_from(table: object) -> ApplicationRule:
    """The rule that *table* describes. ValueError, whose text completes "it must be ..."."""
    if not isinstance(table, dict) or not table:
        raise ValueError(RIGHT)
    for part, text in table.items():
        if part not in PARTS:
            raise ValueError(f"{RIGHT}, and {part} is no part of one: {', '.join(PARTS)} are")
        if (
            not isinstance(text, str)
            or not text.isprintable()
            or not 1 <= len(text.encode(errors="replace")) <= LONGEST
        ):
            raise ValueError(f"{RIGHT}, each {part} a text of 1 to {LONGEST} bytes")
        if part in ("client", "user") and text.count(ANY) > WILDCARDS:
            raise ValueError(f"{RIGHT}, each {part} with up to {WILDCARDS} `*`")
        if part == "listener" and text not in LISTENERS:
            raise ValueError(f"{RIGHT}, each listener one of {', '.join(LISTENERS)}")
        if part == "property" and (text.startswith("=") or "=" not in text):
            raise ValueError(f"{RIGHT}, each property a NAME=VALUE")
    return ApplicationRule(**table)


class ApplicationRules:
    """The kind of the setting application.clients."""

    def take(self, given: object) -> tuple[ApplicationRule, ...]:
        """*given*: the tables, or one text with a TOML array of inline tables."""
        if isinstance(given, str):
            try:
                given = tomllib.loads(f"clients = {given}")["clients"]
            except tomllib.TOMLDecodeError:
                raise ValueError(f'{RIGHT}, or an array such as [{{client = "backend-*"}}]') from None
        if not isinstance(given, list | tuple):
            raise ValueError(RIGHT)
        if len(given) > MOST:
            raise ValueError(f"at most {MOST} tables")
        return tuple(one if isinstance(one, ApplicationRule) else rule_from(one) for one in given)

    def show(self, value: tuple[ApplicationRule, ...]) -> str:
        text = Text()
        tables = [", ".join(f"{part} = {text.show(name)}" for part, name in one.described().items()) for one in value]
        return "[" + ", ".join(f"{{{table}}}" for table in tables) + "]"


@dataclass(frozen=True, kw_only=True)
class Application:
    """APPLICATION clients: services whose sessions outlive their connections, with messages in logs of their own."""

    clients: tuple[ApplicationRule, ...] = setting((), ApplicationRules())  # which clients are of that kind
    # Sessions with logs, of the node, connected or not; each worker has an equal part. Each takes a topic, and in Kafka
    # a partition: a client that chooses its id, and is named by its user property, could make topics without end.
    sessions: int = number(10_000, least=1)
    # Messages of a log that were passed on to its client and are not done: acknowledged, or given up. As in TBMQ.
    max_poll_records: int = number(200, least=1, most=60_000)
    # Seconds after which the oldest message that was sent is to be acknowledged; as in TBMQ.
    pack_timeout: float = duration(20.0, least=0.1, most=86400.0)
    # What follows. RETRY_ALL: all that is not acknowledged is sent again, with MQTT 5.0 over the next connection only
    # [MQTT-4.4.0-1]: its client is disconnected. SKIP_ALL: it is dropped.
    ack_strategy: str = choice(RETRY_ALL, RETRY_ALL, SKIP_ALL)
    ack_retries: int = number(3, most=1_000_000)  # how often RETRY_ALL does that before it disconnects; 0 = any number
    commit_after_retries: bool = flag(False)  # it drops the messages then, as TBMQ does, and disconnects nobody
    retention: float = duration(7 * 86400.0, least=60.0)  # of a topic, as in TBMQ
    retention_bytes: int = size(1_048_576_000, least=MIB)
    replication: int = number(0, most=100)  # copies that Kafka keeps of a topic; 0 = as many as its default is
    # Partitions of the topic of a filter that clients share, when it is made: so many members of a group read at once.
    shared_partitions: int = number(12, least=1, most=1000)
    shared_filters: int = number(100, most=65_535)  # shared subscriptions of a client: each may have a topic made
    # Who says which members of a group read which partitions: leases in Redis, or consumer groups of Kafka. A member
    # that is stuck leaves its partitions to others at once with leases, and within seconds with groups. Both are exact.
    shared: str = choice(LEASES, LEASES, GROUPS)
    # The node does not start while the log cannot be used. false: it starts, and tries on. A client that would begin a
    # session with a log is refused until then (CloseReason.LOG_UNAVAILABLE), as its publishers would wait for that log,
    # and it would be a DEVICE until its next CONNECT if it were let in as one.
    required: bool = flag(True)
