# The topics of logs: that of an APPLICATION client, and that of a filter which such clients share.
#
# As in TBMQ a shared filter has one topic, whatever the share names: groups read it independently of each other. `/`
# becomes `.`, `+` becomes `slw` and `#` becomes `mlw`. The names are injective: a filter that has other characters than
# letters and digits, a level that reads `slw` or `mlw`, or too many characters, has its hash in its place, and no other
# name has a "-". The names of clients have no ".".
#
# Messages of one topic name are in one partition, so they stay in order for as long as one member reads it.
import hashlib
import re
import zlib
from typing import Final

PREFIX: Final = "weir.msg.app."
SHARED: Final = PREFIX + "shared."
LONGEST: Final = 200  # characters of a client id or a filter in the name of a topic, which may have 249
WORDS: Final = {b"+": "slw", b"#": "mlw"}
PLAIN: Final = re.compile(rb"[A-Za-z0-9]*")
HASHED: Final = "sha256-"
OWN_GROUP: Final = "application-persisted-msg-consumer-group-"
SHARED_GROUP: Final = "application-shared-msg-consumer-group-"
GROUP_WORD: Final = re.compile(rb"[A-Za-z0-9._-]*")


def topic_of(client: bytes) -> str:
    """The topic of *client*: its client id, if that is of ASCII letters and digits, else a hash. No two share one."""
    name = client.decode(errors="surrogateescape")
    plain = name.isascii() and name.isalnum() and len(name) <= LONGEST
    return PREFIX + (name if plain else _hashed(client))


def shared_topic_of(filter: bytes) -> str:
    """The topic of *filter*, which is without "$share/name/". No two share one."""
    levels: list[str] = []
    for level in filter.split(b"/"):
        word = WORDS.get(level)
        if word is None:
            word = level.decode(errors="replace")
            if PLAIN.fullmatch(level) is None or word in WORDS.values():
                return SHARED + _hashed(filter)
        levels.append(word)
    name = ".".join(levels)
    return SHARED + (name if len(name) <= LONGEST else _hashed(filter))


def group_of(topic: str) -> str:
    """The consumer group that reads *topic*, of a client, for the tools of Kafka."""
    return OWN_GROUP + topic[len(PREFIX) :]


def shared_group_of(share: bytes, topic: str) -> str:
    """The consumer group of the share name *share* that reads *topic*, of a filter. No two share one."""
    name = share.decode(errors="replace")
    plain = GROUP_WORD.fullmatch(share) is not None and len(share) <= LONGEST and not name.startswith(HASHED)
    return f"{SHARED_GROUP}{name if plain else _hashed(share)}-{topic}"


def partition_of(topic: bytes, partitions: int) -> int:
    """The partition, of so many, that messages of the topic name *topic* go to: the same at every worker."""
    return zlib.crc32(topic) % partitions


def _hashed(text: bytes) -> str:
    return HASHED + hashlib.sha256(text).hexdigest()
