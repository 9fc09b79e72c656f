# Tokens: a QoS 2 publish that is sent again after a crash is stored once, however many workers had it.
#
# A publisher whose worker has died sends again what was not answered. Nobody knows which of its durable receivers have
# stored it. So such a publish carries a token, an origin and a number: the origin is drawn at random by each worker
# that has the session of the publisher, and its publishes are numbered in their order. A queue remembers the highest
# number of each origin that it has taken, in the transaction that stores the message: publishes of one origin come by
# one lane, in their order, so what is not above that number has come before. Each will has an origin of its own; those
# of wills are remembered apart, as clients that come and go are not to push out those of publishers.
#
# What comes through a shared subscription comes in any order: a publish that its receiver may have lost goes to another
# member, or waits in the list of the group, behind later ones. So each number of it is remembered: group_numbers.py.
#
# The session of the publisher stores the token of each packet id that is not released, and how far it has counted,
# before PUBREC leaves. An origin is stored before a publish gets a number of it: else the next worker could not give
# that number again. What that worker does not find in the record was not answered: the client sends all of that again
# [MQTT-4.4.0-1], in the order of the first time [MQTT-4.6.0-1], so it gets the numbers that follow, as it had them.
# That ends with the first publish that is not a duplicate.
#
# PUBCOMP leaves once the removal of the token is stored, and so does a PUBREC that refuses a publish which has got a
# token. With PUBCOMP the client may use the packet id again
# [MQTT-2.2.1-4]: if the worker died before the removal was stored, the next worker would give the token to another
# publish, which receivers would take for a repetition. It costs no more transactions while one is under way all the
# time, as under load, and one for each PUBREL of a client that waits for each answer. To store a checksum with the
# token, so that PUBCOMP could leave at once, was rejected: a publish may have the topic and the payload of the one
# before it.
#
# If a session is taken from a worker that does not answer, what was on its way to that worker comes again, perhaps
# behind later publishes of its origin, which have found the new owner. So the new owner stores a gap for each origin,
# from what was stored to what came first then: numbers in it are late, and keep their order, too. They are not stored
# one by one, as most of them may be of publishes for others.
#
# A loss of power may take back what the session of the publisher has stored, but not what a queue has (README, class
# `process`): then what follows the number that the session knows are numbers that the queue has taken for publishes
# that were answered, and the packet ids that it knows may be those of earlier publishes. What the client sends again
# would be acknowledged, and dropped as a repetition. So the era of the store (supervisor/store_era.py) is stored with
# the number, and from a former era nothing is believed: such publishes get a new origin, and may come twice.
#
# While Redis is full a session moves with what is stored (removals.py), and the rest is published again. Any of that
# may come behind greater numbers, as publishes that another receiver had lost have come again at the new owner before.
# So the former owner tells which tokens it had taken and not stored. Those that have not come again are stored beside
# the highest number, as the session may move on, or its owner die.
#
# A set of all tokens that a queue has taken was rejected: its size follows the traffic, not the number of publishers.
#
# In the record of a session (record.py), each name beginning with a NUL, as no filter has one:
#
#   field "\0i" PACKET ID (2 bytes)    token of a publish that is not released
#   field "\0n"                        token of the last publish that was counted, and the era of the store
#   field "\0o" ORIGIN                 the highest number that its queue has taken, of a will 0; then those that come
#                                      again, and gaps: the last number before it with its highest bit, the first behind
#   field "\0g" ORIGIN CHUNK (8 bytes)  which numbers of the chunk it has taken through groups, the lowest bit first
import os
from typing import Final

from broker.delivery.completion import Completion
from broker.session.message import GroupMessage, Message
from broker.store.durable.group_numbers import GroupNumbers, is_chunk
from broker.store.redis.connection import packed

ORIGIN: Final = 8  # bytes
NUMBER: Final = 8
TOKEN: Final = ORIGIN + NUMBER
ERA: Final = 4
OF_WILL: Final = bytes(NUMBER)  # the number in the token of a will: those of publishes begin with 1
INCOMING: Final = b"\0i"
COUNTED: Final = b"\0n"
TAKEN: Final = b"\0o"
TAKEN_IN_GROUPS: Final = b"\0g"
ORIGINS: Final = 1000  # of publishers that a queue remembers: so many may be about to send again. Of wills as many
MARKED: Final = bytes((128,)) + bytes(NUMBER - 1)  # numbers from this one on have a mark: no publish has so many
GAPS: Final = 2  # of an origin: so many workers in a row may not answer before what the first did not store has come
DUE_AGAIN: Final = 10_000  # numbers; beyond, their oldest origins are forgotten, whose publishes may be taken twice


def new_token() -> bytes:
    """The token of a will, with an origin of its own: any worker may publish the will again."""
    return os.urandom(ORIGIN) + OF_WILL


def is_will(message: Message) -> bool:
    """Whether *message* is a will with a token: it may be published again, so it must be stored before it is sent."""
    completion = message.as_published().completion
    return completion is not None and completion.token != b"" and completion.token[ORIGIN:] == OF_WILL


class PublishTokens:
    """The tokens of the publishes of one session."""

    def __init__(self, former: bytes, tokens: dict[int, bytes], era: bytes) -> None:
        """*former*, *tokens*: what another worker has stored. *era*: of the store, see `StoredTokens`."""
        self.due: list[Completion] = []  # of publishes whose tokens are not stored
        self.written: list[Completion] = []  # the same, with the transaction under way
        self._origin = b""  # drawn when it is needed
        self._number = 0
        self._former = former  # the token that another worker counted last, while duplicates may follow it
        self._tokens = tokens  # by packet id, not released
        self._era = era
        self._changed: dict[int, None] = {}  # packet ids
        self._removed: dict[int, Completion] = {}  # those that were released, with what waits until that is stored
        self._removed_written: dict[int, Completion] = {}  # the same, with the transaction under way
        self._counted = False  # since the last collect()
        self._origin_stored = False
        self._origin_written = False  # with the transaction under way

    def may_receive(self, packet_id: int, duplicate: bool) -> bool:
        """Whether `receive()` may be called: false if a new origin has to be stored before, which `collect()` does."""
        if self._origin_stored or (duplicate and (self._former or packet_id in self._tokens)):
            return True
        if not self._origin:
            self._former = b""
            self._origin = os.urandom(ORIGIN)
            self._counted = True
        return False

    def removed(self) -> list[Completion]:
        """What `removes()` returned last is removed; what waits for that."""
        removed, self._removed_written = self._removed_written, {}
        return list(removed.values())

    def committed(self) -> list[Completion]:
        """What `collect()` returned last is stored; the publishes whose tokens are."""
        self._origin_stored = self._origin_stored or self._origin_written
        written, self.written = self.written, []
        return written

    def receive(self, packet_id: int, duplicate: bool) -> bytes:
        """The token of a publish that was received, for the first time or as a *duplicate*: if it may be."""
        token = self._tokens.get(packet_id) if duplicate else None
        if token is not None:
            return token
        if duplicate and self._former:
            token = self._former = following(self._former)
        else:
            self._former = b""
            self._number += 1
            token = self._origin + self._number.to_bytes(NUMBER, "big")
        self._tokens[packet_id] = token
        self._changed[packet_id] = None
        former = self._removed.pop(packet_id, None)
        if former is not None:  # the client did not wait for PUBCOMP: the new token replaces the one to be removed
            self.due.append(former)
        self._counted = True
        return token

    def release(self, packet_id: int) -> Completion | None:
        """PUBREL has come; what is settled once that is stored, or None if nothing is stored of *packet_id*.

        If PUBREL comes again before that, it is the same one: however often it comes, no more is kept.
        """
        if self._tokens.pop(packet_id, None) is None:
            return self._removed.get(packet_id) or self._removed_written.get(packet_id)
        self._changed.pop(packet_id, None)
        completion = self._removed[packet_id] = Completion()
        completion.pending = 1
        return completion

    def removes(self) -> list[bytes]:
        """The fields to remove."""
        if not self._removed:
            return []
        self._removed_written, self._removed = self._removed, {}
        return [incoming(packet_id) for packet_id in self._removed_written]

    def collect(self) -> list[bytes]:
        """The fields to set: each name is followed by its value."""
        self.written, self.due = self.due, []
        changed = []
        for packet_id in self._changed:
            changed += [incoming(packet_id), self._tokens[packet_id]]
        if self._counted:
            last = self._former or self._origin + self._number.to_bytes(NUMBER, "big")
            changed += [COUNTED, last + self._era]
        self._changed, self._counted = {}, False
        self._origin_written = self._origin != b""
        return changed


class TakenNumbers:
    """The numbers of each origin that a queue has taken, and the publishes that it was offered again."""

    def __init__(
        self, taken: dict[bytes, bytes], late: bool, again: list[bytes], in_groups: dict[bytes, bytes] | None = None
    ) -> None:
        """*taken*: what is stored of origins. *late*: numbers above that may still come, behind greater ones.

        *again*: tokens of publishes that come again, as the worker before this one had taken and not stored them.
        *in_groups*: what is stored of numbers that were taken through groups; None: nothing.
        """
        self.repeated: list[Message] = []  # to be settled when the first one is stored
        self.repeated_due: list[Message] = []  # the same, with the transaction under way
        self._highest: dict[bytes, bytes] = {}  # of publishers, in the order in which the origins were added
        self._wills: dict[bytes, None] = {}  # origins of wills, in the same order
        self._in_groups = None if not in_groups else GroupNumbers(in_groups)
        self._late = late
        self._opened: dict[bytes, None] = {}  # origins of which a number above has come since, if *late*
        self._gaps: dict[bytes, list[tuple[bytes, bytes]]] = {}  # of origins: late numbers are between these two
        self._again: dict[bytes, dict[bytes, None]] = {}  # of origins: numbers that come again
        self._again_count = 0
        self._changed: dict[bytes, None] = {}
        self._removed: list[bytes] = []
        for origin, value in taken.items():
            if value == OF_WILL:
                self._wills[origin] = None
                continue
            self._highest[origin] = value[:NUMBER]
            self._restore(origin, [value[at : at + NUMBER] for at in range(NUMBER, len(value), NUMBER)])
        for token in again:
            origin = token[:ORIGIN]
            if token[ORIGIN:] == OF_WILL:
                continue  # it is taken when it comes
            self._highest.setdefault(origin, bytes(NUMBER))
            self._comes_again(origin, token[ORIGIN:])
            self._changed[origin] = None
        self._forget_oldest()

    def _restore(self, origin: bytes, numbers: list[bytes]) -> None:
        """*numbers*: what is stored behind the highest one."""
        last = b""
        for number in numbers:
            if last:
                self._gaps.setdefault(origin, []).append((last, number))
                last = b""
            elif number >= MARKED:
                last = _without_mark(number)
            else:
                self._comes_again(origin, number)

    def _comes_again(self, origin: bytes, number: bytes) -> None:
        numbers = self._again.setdefault(origin, {})
        if number not in numbers:
            numbers[number] = None
            self._again_count += 1

    def take(self, token: bytes) -> bool:
        """Remember that the publish with *token* is taken; false if it was taken before."""
        origin, number = token[:ORIGIN], token[ORIGIN:]
        if number == OF_WILL:
            return self._take_will(origin)
        highest = self._highest.get(origin)
        above = highest is None or number > highest  # both in eight bytes, the most significant first
        again = self._again.get(origin)
        if again is not None and number in again:
            del again[number]
            if not again:
                del self._again[origin]
            self._again_count -= 1
            self._changed[origin] = None
            self._comes_late(origin, number)  # not once more
        elif not above:
            return self._comes_late(origin, number)
        if above:
            if self._late and origin not in self._opened:
                self._open_gap(origin, highest or bytes(NUMBER), number)
            self._highest[origin] = number
            self._changed[origin] = None
            self._forget_oldest()
        return True

    def take_in_group(self, token: bytes) -> bool:
        """As `take()`, of a publish that came through a group, or waits for the members of one: in any order."""
        if token[ORIGIN:] == OF_WILL:
            return self._take_will(token[:ORIGIN])
        if self._in_groups is None:
            self._in_groups = GroupNumbers({})
        return self._in_groups.take(token)

    def _take_will(self, origin: bytes) -> bool:
        if origin in self._wills:
            return False
        self._wills[origin] = None
        self._changed[origin] = None
        self._forget_oldest()
        return True

    def _open_gap(self, origin: bytes, last: bytes, first: bytes) -> None:
        self._opened[origin] = None
        if _following(last) < first:
            self._gaps[origin] = [*self._gaps.get(origin, []), (last, first)][-GAPS:]

    def _comes_late(self, origin: bytes, number: bytes) -> bool:
        """Whether *number*, which is not above the highest one, comes for the first time."""
        gaps = self._gaps.get(origin, [])
        for at, (last, first) in enumerate(gaps):
            if last < number < first:
                gaps[at : at + 1] = [(number, first)] if _following(number) < first else []
                self._changed[origin] = None
                return True
        return False

    def nothing_late(self) -> None:
        """Numbers come in order, as all that were on their way to another worker have come."""
        self._late = False

    def expect_late(self) -> None:
        """Numbers may come behind greater ones from now on, of each origin anew."""
        self._late = True
        self._opened = {}

    def forget(self) -> None:
        """Take each publish for one that was not taken."""
        for origin in [*self._wills, *self._highest]:
            self._forgotten(origin)
        self._highest, self._wills, self._gaps, self._opened = {}, {}, {}, {}
        self._again, self._again_count = {}, 0
        if self._in_groups is not None:
            self._in_groups.forget()

    def _forget_oldest(self) -> None:
        while len(self._wills) > ORIGINS:
            oldest = next(iter(self._wills))
            del self._wills[oldest]
            self._forgotten(oldest)
        while len(self._highest) > ORIGINS or self._again_count > DUE_AGAIN:
            oldest = next(iter(self._highest if self._again_count <= DUE_AGAIN else self._again))
            del self._highest[oldest]
            self._gaps.pop(oldest, None)
            self._opened.pop(oldest, None)
            self._again_count -= len(self._again.pop(oldest, ()))
            self._forgotten(oldest)

    def _forgotten(self, origin: bytes) -> None:
        self._changed.pop(origin, None)
        self._removed.append(origin)

    def again(self) -> list[bytes]:
        """The tokens of the publishes that come again."""
        return [origin + number for origin, numbers in self._again.items() for number in numbers]

    def unstored(self) -> bool:
        """Whether `writes()` has something to store, or publishes are to be settled by it."""
        in_groups = self._in_groups is not None and self._in_groups.unstored()
        return bool(in_groups or self._changed or self._removed or self.repeated)

    def writes(self, key: bytes, alone: bool) -> list[bytes]:
        """The commands that store what has changed, in the record under *key*.

        *alone*: nothing else is written. Then there is a command at least, if publishes are to be settled: nothing else
        would tell that the first ones are stored.
        """
        self.repeated_due, self.repeated = self.repeated, []
        writes = []
        removed = [TAKEN + origin for origin in self._removed]
        fields = []
        for origin in self._changed:
            fields += [TAKEN + origin, self._highest.get(origin, OF_WILL) + self._beside(origin)]
        if self._in_groups is not None:
            removed += [TAKEN_IN_GROUPS + name for name in self._in_groups.removes()]
            for name, bits in self._in_groups.collect().items():
                fields += [TAKEN_IN_GROUPS + name, bits]
        if removed:
            writes.append(packed("HDEL", key, *removed))
        if fields:
            writes.append(packed("HSET", key, *fields))
        if not writes and self.repeated_due and alone:
            writes.append(packed("EXISTS", key))
        self._changed, self._removed = {}, []
        return writes

    def _beside(self, origin: bytes) -> bytes:
        """What is stored behind the highest number of *origin*."""
        gaps = [_with_mark(last) + first for last, first in self._gaps.get(origin, [])]
        return b"".join([*self._again.get(origin, ()), *gaps])


class StoredTokens:
    """What was found of both in a record."""

    def __init__(self) -> None:
        self.era = b""  # ERA bytes; b"": the store has none, and takes nothing back
        self.former = b""
        self.incoming: dict[int, bytes] = {}
        self.taken: dict[bytes, bytes] = {}
        self.in_groups: dict[bytes, bytes] = {}

    def of_publisher(self, era: bytes) -> PublishTokens | None:
        """What the session goes on with in *era*; None: it has published nothing that counts."""
        if not self.former:
            return None
        if self.era in (b"", era):
            return PublishTokens(self.former, self.incoming, era)
        tokens = PublishTokens(b"", self.incoming, era)
        for packet_id in list(self.incoming):
            tokens.release(packet_id)
        return tokens


def read_tokens(fields: dict[bytes, bytes]) -> StoredTokens:
    """Remove from *fields* those of tokens. ValueError: one is damaged."""
    found = StoredTokens()
    for name in [name for name in fields if name[:2] in (INCOMING, COUNTED, TAKEN, TAKEN_IN_GROUPS)]:
        value, kind, rest = fields.pop(name), name[:2], name[2:]
        if kind == INCOMING and len(rest) == 2 and len(value) == TOKEN:
            found.incoming[int.from_bytes(rest, "big")] = value
        elif kind == COUNTED and not rest and len(value) in (TOKEN, TOKEN + ERA):
            found.former, found.era = value[:TOKEN], value[TOKEN:]
        elif kind == TAKEN and len(rest) == ORIGIN and value and len(value) % NUMBER == 0:
            found.taken[rest] = value
        elif kind == TAKEN_IN_GROUPS and is_chunk(rest, value):
            found.in_groups[rest] = value
        else:
            raise ValueError("a token in the record cannot be read")
    return found


def believed_fields(fields: list[bytes], era: bytes) -> list[bytes]:
    """*fields*, each name followed by its value, without the tokens of a publisher that are not believed in *era*."""
    for at in range(0, len(fields), 2):
        if fields[at] == COUNTED and fields[at + 1][TOKEN:] not in (b"", era):
            break
    else:
        return fields
    kept: list[bytes] = []
    for at in range(0, len(fields), 2):
        if fields[at][: len(INCOMING)] not in (INCOMING, COUNTED):
            kept += fields[at : at + 2]
    return kept


def through_group(token: bytes, group: int) -> bytes:
    """The token of a publish that a queue gets through the shared subscription with the tag *group*.

    It may get the publish through another subscription, too, of which the shared one is independent (4.8.2).
    """
    origin = int.from_bytes(token[:ORIGIN], "big") ^ group
    return origin.to_bytes(ORIGIN, "big") + token[ORIGIN:]


def token_of(message: Message) -> bytes:
    """The token of *message* for the queue that gets it; b"": it has none."""
    completion = message.as_published().completion
    token = b"" if completion is None else completion.token
    return through_group(token, message.group) if token and isinstance(message, GroupMessage) else token


def incoming(packet_id: int) -> bytes:
    return INCOMING + packet_id.to_bytes(2, "big")


def following(token: bytes) -> bytes:
    """The next token of the same origin."""
    return token[:ORIGIN] + _following(token[ORIGIN:])


def _following(number: bytes) -> bytes:
    return (int.from_bytes(number, "big") + 1).to_bytes(NUMBER, "big")


def _with_mark(number: bytes) -> bytes:
    return bytes((number[0] | MARKED[0],)) + number[1:]


def _without_mark(number: bytes) -> bytes:
    return bytes((number[0] & ~MARKED[0],)) + number[1:]
