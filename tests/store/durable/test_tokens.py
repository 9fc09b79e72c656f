# Tokens of QoS 2 publishes: what is sent again gets the token that it had, and a queue takes it once.
import pytest

from broker.store.durable.tokens import (
    COUNTED,
    DUE_AGAIN,
    ERA,
    GAPS,
    INCOMING,
    ORIGIN,
    ORIGINS,
    TAKEN,
    TOKEN,
    PublishTokens,
    TakenNumbers,
    read_tokens,
)


class Publisher:
    """A publisher whose tokens are stored when the test says so, and whose worker may die."""

    def __init__(self, era: bytes = b"") -> None:
        self.stored: dict[bytes, bytes] = {}
        self.tokens = PublishTokens(b"", {}, era)
        self.era = era

    def store(self) -> None:
        removed, changed = self.tokens.removes(), self.tokens.collect()
        for name in removed:
            self.stored.pop(name, None)
        self.stored |= dict(zip(changed[::2], changed[1::2], strict=True))
        self.tokens.removed()
        self.tokens.committed()

    def receive(self, packet_id: int, duplicate: bool) -> bytes:
        """The token of a publish, which waits until it may be received."""
        if not self.tokens.may_receive(packet_id, duplicate):
            self.store()
            assert self.tokens.may_receive(packet_id, duplicate)
        return self.tokens.receive(packet_id, duplicate)

    def lose_worker(self) -> None:
        self.tokens = read_tokens(dict(self.stored)).of_publisher(self.era) or PublishTokens(b"", {}, self.era)


@pytest.fixture
def publisher() -> Publisher:
    return Publisher()


def test_publishes_are_numbered_in_their_order(publisher: Publisher) -> None:
    """A queue would take a later publish for one that it has."""
    tokens = [publisher.receive(packet_id, False) for packet_id in (7, 3, 9)]

    assert [TOKEN] * 3 == list(map(len, tokens))
    assert 1 == len({token[:ORIGIN] for token in tokens})
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("stored", range(4))
def test_what_is_sent_again_has_its_token_however_much_was_stored(publisher: Publisher, stored: int) -> None:
    """A receiver that has stored it would store it twice."""
    before = []
    for number, packet_id in enumerate((7, 3, 9)):
        if number == stored:
            publisher.store()
        before.append(publisher.receive(packet_id, False))
    if stored == 3:
        publisher.store()

    publisher.lose_worker()

    assert before == [publisher.receive(packet_id, True) for packet_id in (7, 3, 9)]


def test_an_origin_is_stored_before_it_is_used(publisher: Publisher) -> None:
    """A worker that ends before it has stored anything of a publish would leave no trace of the token it gave."""
    before = publisher.receive(1, False)
    publisher.lose_worker()
    new = publisher.tokens
    assert new.may_receive(1, True)
    assert before == publisher.receive(1, True)
    assert not new.may_receive(2, False)
    assert not new.may_receive(2, False)
    publisher.store()
    assert new.may_receive(2, False)


def test_a_new_publish_with_a_former_id_is_another_one(publisher: Publisher) -> None:
    """A message would be taken for the one that had its packet id before, and be lost."""
    before = publisher.receive(1, False)
    publisher.store()
    publisher.tokens.release(1)  # which is not stored yet
    publisher.lose_worker()

    new = publisher.receive(1, False)
    assert new[:ORIGIN] != before[:ORIGIN]
    assert new == publisher.receive(1, True)


def test_duplicates_behind_a_new_publish_are_not_those_of_the_former_worker(publisher: Publisher) -> None:
    """A publish whose first try was never read would get the number of another one, and be lost."""
    publisher.receive(1, False)
    publisher.store()
    publisher.lose_worker()
    first = publisher.receive(2, False)

    assert first[:ORIGIN] == publisher.receive(3, True)[:ORIGIN]


def test_a_released_id_is_forgotten(publisher: Publisher) -> None:
    """What is stored would grow with each publish."""
    publisher.receive(1, False)
    publisher.store()
    assert publisher.tokens.release(1) is not None
    publisher.store()

    assert publisher.tokens.release(1) is None
    assert [COUNTED] == list(publisher.stored)


def test_a_release_is_done_when_it_is_stored_and_not_before(publisher: Publisher) -> None:
    """PUBCOMP would leave while a crash would give the token to the next publish with that id; or never.

    Or PUBREL, sent again and again while Redis is away, would fill the memory.
    """
    publisher.receive(1, False)
    publisher.store()
    released = publisher.tokens.release(1)
    assert released is not None
    assert released is publisher.tokens.release(1)
    publisher.tokens.removes()
    assert released is publisher.tokens.release(1)

    assert [released] == publisher.tokens.removed()
    assert publisher.tokens.release(1) is None
    assert [] == publisher.tokens.removed()


def test_a_client_that_uses_an_id_before_its_pubcomp_gets_it_with_the_next_pubrec(publisher: Publisher) -> None:
    """It would wait for it for ever."""
    publisher.receive(1, False)
    publisher.store()
    released = publisher.tokens.release(1)
    publisher.receive(1, False)
    publisher.tokens.collect()

    assert [released] == publisher.tokens.committed()


def test_a_publish_that_is_received_and_released_at_once_leaves_its_number(publisher: Publisher) -> None:
    """The next worker would give its number to another publish."""
    before = publisher.receive(1, False)
    publisher.tokens.release(1)
    publisher.store()
    publisher.lose_worker()

    assert before < publisher.receive(2, True)


def test_what_a_loss_of_power_left_is_not_believed() -> None:
    """A publish would get the number of one that was answered, and its queue has: it would be acknowledged, and lost.

    That one was forgotten, or another had its packet id, which was released.
    """
    publisher = Publisher(b"era1")
    given = [publisher.receive(1, False)]
    publisher.store()
    left = dict(publisher.stored)
    given += [publisher.receive(2, False), publisher.receive(3, False)]  # and the queue stores them

    publisher.stored, publisher.era = left, b"era2"
    publisher.lose_worker()
    new = [publisher.receive(packet_id, True) for packet_id in (3, 4, 1)]

    assert {token[:ORIGIN] for token in given}.isdisjoint(token[:ORIGIN] for token in new)
    publisher.store()
    publisher.lose_worker()
    assert new == [publisher.receive(packet_id, True) for packet_id in (3, 4, 1)]


def test_packet_ids_of_a_former_era_are_forgotten() -> None:
    """The next worker would believe them, as they are stored beside a number of its era."""
    publisher = Publisher(b"era1")
    former = publisher.receive(1, False)
    publisher.store()
    publisher.era = b"era2"
    publisher.lose_worker()
    publisher.receive(2, False)
    publisher.store()
    publisher.lose_worker()

    assert former[:ORIGIN] != publisher.receive(1, True)[:ORIGIN]


@pytest.mark.parametrize("era", [b"", b"era2"])
def test_a_number_without_an_era_is_believed(era: bytes) -> None:
    """QoS 2 would be doubled when a newer build is started, or with a server of the user."""
    publisher = Publisher(b"")
    given = publisher.receive(1, False)
    publisher.store()
    publisher.era = era
    publisher.lose_worker()

    assert given == publisher.receive(1, True)


def test_a_queue_takes_each_number_of_an_origin_once() -> None:
    """A message would be stored twice, or one of another publisher not at all."""
    taken = TakenNumbers({}, False, [])

    def token(origin: int, number: int) -> bytes:
        return bytes([origin]) * ORIGIN + number.to_bytes(8, "big")

    tokens = [token(1, 1), token(1, 3), token(1, 3), token(1, 2), token(2, 2), token(1, 256), token(1, 255)]
    assert [True, True, False, False, True, True, False] == list(map(taken.take, tokens))
    store: dict[bytes, bytes] = {}
    carry_out(taken, store)
    again = TakenNumbers(read_tokens(dict(store)).taken, False, [])
    assert [False, False, True] == list(map(again.take, [token(1, 256), token(2, 2), token(2, 3)]))
    carry_out(again, store)
    assert {1: 256, 2: 3} == {name[-1]: int.from_bytes(number, "big") for name, number in store.items()}


def token_of(number: int, origin: int = 0) -> bytes:
    return origin.to_bytes(ORIGIN, "big") + number.to_bytes(8, "big")


@pytest.mark.parametrize("moves", [(), (False, False, False), (True, False, True), (True, True, True)])
def test_a_queue_that_was_taken_takes_what_comes_behind_later_numbers_once(moves: tuple[bool, ...]) -> None:
    """What was on its way to a worker that did not answer would be lost, or come twice when it is sent again.

    *moves*: then the session moves on, or is taken from its new worker (true), before all has come.
    """
    taken = TakenNumbers({bytes(ORIGIN): (3).to_bytes(8, "big")}, True, [])
    record: dict[bytes, bytes] = {}

    def take(*numbers: int) -> list[bool]:
        return [taken.take(token_of(number)) for number in numbers]

    def move(number: int) -> None:
        nonlocal taken
        carry_out(taken, record)
        if moves:
            taken = TakenNumbers(read_tokens(dict(record)).taken, moves[number], [])

    assert [False, True, True] == take(3, 7, 9)
    move(0)
    assert [False, True, False] == take(2, 4, 4)
    move(1)
    assert [True, False, False, False] == take(6, 5, 7, 9)
    move(2)
    assert [True] == take(12)
    move(0)
    assert [moves[2:] == (True,)] == take(11)
    move(0)
    assert not any(take(*range(1, 13)))


def test_a_queue_remembers_few_gaps_of_an_origin() -> None:
    """What it stores with each message would grow with each worker that it was taken from."""
    record = {TAKEN + bytes(ORIGIN): (1).to_bytes(8, "big")}
    for number in range(10, 100, 10):
        taken = TakenNumbers(read_tokens(dict(record)).taken, True, [])
        assert taken.take(token_of(number))
        carry_out(taken, record)

    assert len(record[TAKEN + bytes(ORIGIN)]) == (1 + 2 * GAPS) * 8
    assert [False, True, True] == [taken.take(token_of(number)) for number in (65, 75, 85)]


def test_a_queue_that_knows_that_nothing_comes_late_opens_no_gap() -> None:
    """A publish that is sent again would be taken twice."""
    taken = TakenNumbers({bytes(ORIGIN): (3).to_bytes(8, "big")}, True, [])
    taken.nothing_late()
    assert taken.take(token_of(6))
    assert not taken.take(token_of(5))


@pytest.mark.parametrize("late", [True, False])
def test_a_queue_takes_once_what_was_not_stored_where_it_was_before(late: bool) -> None:
    """A publish would be lost, as greater numbers came again before, or be stored twice when it is sent once more.

    The session may move on, or be adopted, before all of them have come.
    """
    stored = {bytes(ORIGIN): (3).to_bytes(8, "big")}
    taken = TakenNumbers(stored, late, [token_of(number) for number in (5, 6, 8, 9)])

    assert [False, True, True] == [taken.take(token_of(number)) for number in (2, 5, 10)]
    assert {token_of(number) for number in (6, 8, 9)} == set(taken.again())
    record: dict[bytes, bytes] = {}
    assert taken.unstored()
    carry_out(taken, record)
    assert not taken.unstored()
    adopted = TakenNumbers(read_tokens(dict(record)).taken, late, [])
    assert [False, False, True, False, False] == [adopted.take(token_of(number)) for number in (5, 7, 8, 8, 10)]
    carry_out(adopted, record)
    moved = TakenNumbers(read_tokens(dict(record)).taken, late, adopted.again())
    assert [True, False, True, True] == [moved.take(token_of(number)) for number in (6, 8, 9, 11)]
    assert [4] * late == [number for number in range(1, 12) if moved.take(token_of(number))]
    carry_out(moved, record)
    assert [token_of(11)[ORIGIN:]] == list(record.values())


def test_what_comes_again_below_the_first_number_is_taken_once() -> None:
    """It would be stored twice, if it is sent once more: as what was not stored, and as what comes late."""
    taken = TakenNumbers({}, True, [token_of(1), token_of(3)])

    assert [True, True, False, True, True, False, False] == [
        taken.take(token_of(number)) for number in (5, 3, 3, 4, 1, 1, 2)
    ]


def test_what_comes_again_is_stored_at_once_although_nothing_of_its_origin_is() -> None:
    """The next owner would read a greater number, and not know what was not stored below it."""
    taken = TakenNumbers({}, False, [token_of(2)])
    record: dict[bytes, bytes] = {}
    carry_out(taken, record)

    adopted = TakenNumbers(read_tokens(record).taken, False, [])
    assert [True, True, False] == [adopted.take(token_of(number)) for number in (5, 2, 4)]


def test_a_will_that_comes_again_is_taken_once() -> None:
    """It would be stored twice: as what was not stored where the queue was before, and when it is published again."""
    taken = TakenNumbers({}, True, [token_of(0, 7)])
    assert [True, False] == [taken.take(token_of(0, 7)) for _ in range(2)]
    record: dict[bytes, bytes] = {}
    carry_out(taken, record)

    assert not TakenNumbers(read_tokens(record).taken, True, []).take(token_of(0, 7))


def test_a_queue_remembers_so_many_numbers_that_come_again() -> None:
    """Who publishes, and never again, would fill the memory of the worker and of Redis."""
    tokens = [token_of(number, origin) for origin in range(2) for number in range(1, DUE_AGAIN + 1)]
    taken = TakenNumbers({bytes([7]) * ORIGIN: bytes([1] * 8)}, False, tokens)

    assert tokens[DUE_AGAIN:] == taken.again()
    assert taken.take(token_of(1, 0))
    assert not taken.take(bytes([7]) * ORIGIN + bytes([1] * 8))  # of another one


def carry_out(taken: TakenNumbers, store: dict[bytes, bytes]) -> None:
    """What *taken* has to be written is carried out, in a record with the fields *store*."""
    for command in taken.writes(b"key", True):
        words = command.split(b"\r\n")[2::2]
        fields = words[2:]
        if words[0] == b"HSET":
            store |= dict(zip(fields[::2], fields[1::2], strict=True))
        else:
            assert words[0] == b"HDEL"
            for name in fields:
                store.pop(name, None)


@pytest.mark.parametrize("first", [0, 1])
def test_a_queue_remembers_so_many_origins(first: int) -> None:
    """A queue would grow with each publisher, or each will, that there ever was. *first*: 0: they are wills."""
    taken = TakenNumbers({}, False, [])
    store: dict[bytes, bytes] = {}
    for origin in range(2 * ORIGINS + 10):
        assert taken.take(token_of(first, origin))
        if origin % 7 == 0:
            carry_out(taken, store)

    assert abs(len(store) - ORIGINS) <= 7
    assert not taken.take(token_of(first, 2 * ORIGINS))
    assert taken.take(token_of(first, 0))


@pytest.mark.parametrize("adopted", [False, True])
def test_wills_push_out_wills_alone(adopted: bool) -> None:
    """Clients that come and go would have the publishes of all others stored twice, or the reverse."""
    taken = TakenNumbers({}, False, [])
    assert taken.take(token_of(1, 1)) and taken.take(token_of(0, 2))
    store: dict[bytes, bytes] = {}
    for kind in (0, 1):
        for origin in range(10, 10 + ORIGINS - 1):
            assert taken.take(token_of(kind, origin + kind * ORIGINS))
        carry_out(taken, store)
        if adopted:
            taken = TakenNumbers(read_tokens(dict(store)).taken, False, [])

    assert not taken.take(token_of(1, 1))
    assert not taken.take(token_of(0, 2))
    assert taken.take(token_of(2, 1))
    carry_out(taken, store)
    assert len(store) == 2 * ORIGINS
    assert store[TAKEN + token_of(2, 1)[:ORIGIN]] == token_of(2, 1)[ORIGIN:]
    assert store[TAKEN + token_of(0, 2)[:ORIGIN]] == bytes(8)


@pytest.mark.parametrize(
    "field",
    [
        {INCOMING: bytes(TOKEN)},
        {INCOMING + b"123": bytes(TOKEN)},
        {INCOMING + b"12": bytes(TOKEN - 1)},
        {COUNTED: b""},
        {COUNTED: bytes(TOKEN + ERA - 1)},
        {COUNTED + b"1": bytes(TOKEN)},
        {TAKEN + bytes(ORIGIN): b"1"},
        {TAKEN + bytes(ORIGIN): b""},
        {TAKEN + bytes(ORIGIN): bytes(17)},
        {TAKEN: bytes(8)},
    ],
)
def test_a_damaged_token_is_found(field: dict[bytes, bytes]) -> None:
    """A worker would fail over it later, in the middle of other sessions."""
    with pytest.raises(ValueError, match="token"):
        read_tokens(field)
