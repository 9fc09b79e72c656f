# Lists of sessions that have ended: many at once, long ones, broken ones, and what a round of them costs.
import pytest

from broker.session.message import Message
from broker.store.durable.dropped_queues import LISTS, PACKS, is_dropped, name_of
from broker.store.durable.group_commit import PAUSE
from broker.store.durable.pack import Pack, Reference, StoredMessage, encode_pack
from broker.store.durable.shared_bodies import COUNT
from tests.store.durable.durable_worker import KEYS, WALL, DurableWorker, incarnation
from tests.store.durable.model import ModelRedis
from tests.store.durable.older_packs import older

WRITER = 9  # the worker that stored the bodies
SESSIONS = KEYS.sessions(3, incarnation(1))


@pytest.fixture
def worker() -> DurableWorker:
    return DurableWorker(ModelRedis())


def group(number: int) -> bytes:
    return KEYS.bodies(incarnation(WRITER)) + b"%d" % number


def pack(*numbers: int) -> bytes:
    """A pack of a message for each group in *numbers*; of one that refers to no group, if there is none."""
    message = Message(b"t", b"x", 1, False, b"", 0.0)
    found = [StoredMessage(at, message, Reference(number, 1)) for at, number in enumerate(numbers, 1)]
    writer = bytes.fromhex(incarnation(WRITER).decode()) if numbers else b""
    return encode_pack(
        Pack(0, int(WALL), int(WALL), int(WALL), found or [StoredMessage(1, message)], writer), 0.0, WALL
    )


def drop(worker: DurableWorker, *packs: bytes) -> bytes:
    """Have a list of *packs* taken apart, soon; its name."""
    name = name_of(b"client")
    values = worker.redis.values
    values[SESSIONS.queues + name] = list(packs)
    values[SESSIONS.index] = values.get(SESSIONS.index, {}) | {name: b""}
    worker.store.dropped(SESSIONS, name)
    return name


def have_groups(worker: DurableWorker, **packs: int) -> None:
    """Have groups of bodies, to which so many *packs* refer."""
    for number, count in packs.items():
        worker.redis.values[group(int(number[1:]))] = {COUNT: b"%d" % count}


def left(worker: DurableWorker) -> list[bytes]:
    """The keys of lists and bodies."""
    return [key for key in worker.redis.values if is_dropped(key.rpartition(b":queue:")[2][17:]) or b":bodies:" in key]


def reads(worker: DurableWorker) -> list[int]:
    """How many packs are read, of each list, that Redis has not executed."""
    found = [command for command in worker.redis._received if command[0] == b"LRANGE" and b":queue:" in command[1]]
    return [int(last) + 1 for _, _, _, last in found]


def test_sessions_that_end_together_are_taken_apart_together(worker: DurableWorker) -> None:
    """A thousand lists a second: the end of a fleet would keep bodies, and the memory of Redis, for minutes."""
    count = 320
    have_groups(worker, g1=count, g2=count)
    for _ in range(count):
        drop(worker, pack(1, 2), pack())
    before = worker.store.commit.counters.store_transactions
    worker.until(lambda: SESSIONS.index not in worker.redis.values)
    worker.settle()

    assert [] == left(worker)
    assert worker.store.commit.counters.store_transactions - before <= count // 30


def test_packs_of_an_older_build_are_counted(worker: DurableWorker) -> None:
    """The bodies of all sessions that end after an upgrade would stay for a week."""
    have_groups(worker, g1=2)
    drop(worker, older(pack(1)), older(pack()), pack(1))
    worker.until(lambda: SESSIONS.index not in worker.redis.values)
    worker.settle()

    assert [] == left(worker)


def test_a_round_is_bounded_however_long_the_lists_are(worker: DurableWorker) -> None:
    """Lists of 64 KiB packs would be read whole, and hold up the worker and the memory of both."""
    have_groups(worker, g1=(LISTS + 5) * (PACKS + 1))
    for _ in range(LISTS + 5):
        drop(worker, *[pack(1)] * (PACKS + 1))
    most = 0
    while SESSIONS.index in worker.redis.values:
        worker.tick()
        most = max(most, sum(reads(worker)))
        worker.turn()
    worker.settle()

    assert [] == left(worker)
    assert PACKS == most


def test_a_list_that_is_named_twice_is_counted_once(worker: DurableWorker) -> None:
    """A worker that goes on with the lists of another one may find a name again: bodies would go that others need."""
    have_groups(worker, g1=2)
    name = drop(worker, pack(1))
    worker.store.dropped(SESSIONS, name)
    worker.tick()
    worker.store.dropped(SESSIONS, name)  # and once more while it is read
    worker.until(lambda: SESSIONS.index not in worker.redis.values)
    worker.settle()

    assert {COUNT: b"1"} == worker.redis.values[group(1)]


def test_a_broken_list_holds_up_no_other(worker: DurableWorker) -> None:
    """One key of another type, or one pack that cannot be read, would keep the lists of all other sessions."""
    have_groups(worker, g1=2)
    drop(worker, pack(1))
    worker.redis.values[SESSIONS.queues + drop(worker)] = b"no list"
    drop(worker, b"", b"?", pack(1)[:-1])
    drop(worker)  # it is gone
    drop(worker, pack(1))
    worker.until(lambda: SESSIONS.index not in worker.redis.values)
    worker.settle()

    assert [] == left(worker)


@pytest.mark.parametrize("answered", range(4))
def test_a_round_that_is_cut_off_is_read_again(worker: DurableWorker, answered: int) -> None:
    """What was read of some lists would be counted twice, or what was not read never."""
    have_groups(worker, g1=3)
    for _ in range(3):
        drop(worker, pack(1))
    worker.tick()
    worker.redis.execute()
    worker.redis.answer(worker.now, answered)
    worker.redis.cut(worker.now)
    worker.pass_time(2 * PAUSE)
    worker.until(lambda: SESSIONS.index not in worker.redis.values)
    worker.settle()

    assert [] == left(worker)
