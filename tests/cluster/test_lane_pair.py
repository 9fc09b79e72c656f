# The rules that make lanes over pub/sub reliable, on a paper network.
import pytest

from broker.cluster.lane_message import (
    CONTROL,
    DATA,
    FORMAT,
    HEAD_BYTES,
    PAIRED,
    RESEND,
    LaneMessage,
    LaneMessageError,
    Part,
    decode,
)
from broker.cluster.lane_pair import (
    BEGUN_ANEW,
    CONFIRM_AFTER,
    CONFIRM_BYTES,
    FIRST_BYTES,
    FIRST_RETRY,
    IGNORED,
    LONGEST_RETRY,
    MESSAGE,
    MOST_RETRIES,
    NEVER,
    RESEND_PAUSE,
    SETTLING,
    TAKEN,
    WINDOW,
    LanePair,
)
from tests.cluster.lane_network import Network

LANES = (DATA, CONTROL)


def check_all_read(network: Network) -> None:
    for worker in network.workers.values():
        for peer, end in worker.ends.items():
            other = network.workers[peer].ends[worker.incarnation]
            assert end.pair.paired and end.pair._known == other.pair.epoch
            for lane in LANES:
                assert other.lane(lane).written == end.read[lane] == other.lane(lane).confirmed
                assert not other.lane(lane).waits()


def trouble(network: Network, seconds: float, restarts: bool) -> None:
    """Write, cut and connect at random times for some *seconds*; then all connections work."""
    random = network.random
    end = network.now + seconds
    while network.now < end:
        worker = random.choice([*network.workers.values()])
        what = random.random()
        if what < 0.7:
            random.choice([*worker.ends.values()]).write(random.choice(LANES), random.choice((1, 20, 3000, 70_000)))
        elif what < 0.74:
            worker.cut_publishing()
        elif what < 0.78:
            worker.cut_subscription()
        elif what < 0.9:
            worker.connect()
        elif what < 0.91 and restarts:
            random.choice([*worker.ends.values()]).open()
        network.run(network.now + random.choice((0.0, 0.001, 0.01, 0.1)))
    for worker in network.workers.values():
        worker.connect()


@pytest.mark.parametrize("seed", range(40))
def test_what_is_read_is_what_was_written(seed: int) -> None:
    """Bytes would be lost, come twice or come out of order after a lost connection."""
    network = Network(seed, workers=2 + seed % 2)
    trouble(network, 20.0, restarts=False)
    network.run(network.now + 3 * LONGEST_RETRY)

    check_all_read(network)
    assert 0 == network.restarts


@pytest.mark.parametrize("seed", range(40))
def test_ends_that_begin_anew_come_together(seed: int) -> None:
    """Two workers would never talk again, or restart each other for ever, or read what belongs to former lanes."""
    network = Network(seed, workers=2 + seed % 2)
    trouble(network, 20.0, restarts=True)
    opened = sum(end.opens for worker in network.workers.values() for end in worker.ends.values())
    before = network.restarts
    network.run(network.now + 3 * LONGEST_RETRY)

    check_all_read(network)
    ends = sum(len(worker.ends) for worker in network.workers.values())
    assert network.restarts <= opened - ends - before + ends  # each restart of one end restarts the other once
    quiet = network.published
    network.run(network.now + 3 * LONGEST_RETRY)
    assert quiet == network.published


def test_both_ends_begin_anew_at_the_same_moment() -> None:
    """Each would take the other's beginning for a further restart, in turns and for ever."""
    network = Network(0)
    one, two = network.workers[1].ends[2], network.workers[2].ends[1]
    network.run(1.0)
    for _ in range(3):
        one.open()
        two.open()
        network.run(network.now + 0.5)
        assert one.pair.paired and two.pair.paired

    assert 0 == network.restarts


def test_what_is_sent_again_is_bounded() -> None:
    """A receiver whose subscription is cut would be sent everything many times, and be cut because of that."""
    for seed in range(20):
        network = Network(seed)
        sender, receiver = network.workers[1], network.workers[2]
        end = sender.ends[2]
        network.run(0.5)
        cuts = 0
        for step in range(300):
            end.write(DATA, 20_000)
            if step % 60 == 30:
                cuts += 1
                receiver.cut_subscription()
                network.run(network.now + 0.2)
                receiver.connect()
            network.run(network.now + 0.002)
        network.run(network.now + 3.0)

        check_all_read(network)
        assert end.pair.data.resent <= cuts * (2 * WINDOW + MESSAGE), seed


def test_while_nobody_listens_little_is_sent() -> None:
    """A worker that has gone would be sent everything again and again until its lease ends."""
    network = Network(1)
    sender, receiver = network.workers[1], network.workers[2]
    network.run(0.5)
    receiver.cut_subscription()
    receiver.cut_publishing()
    for _ in range(100):
        sender.ends[2].write(DATA, 20_000)
        network.run(network.now + 0.001)
    before = network.published
    network.run(network.now + 30.0)

    assert network.published - before <= 12 * (FIRST_BYTES + 100)
    receiver.connect()
    network.run(network.now + 0.5)
    assert sender.ends[2].lane(DATA).written == receiver.ends[1].read[DATA]


# Single rules.


def paired() -> tuple[LanePair, LanePair]:
    """Two ends that know each other."""
    one, two = LanePair(1, 100), LanePair(2, 200)
    exchange(one, two)
    return one, two


def exchange(one: LanePair, two: LanePair, now: float = 0.0) -> None:
    """Pass all messages on until there are none."""
    while one.wants_to_send() or two.wants_to_send():
        pass_on(one, two, now)
        pass_on(two, one, now)


def pass_on(one: LanePair, two: LanePair, now: float = 0.0) -> list[bytes]:
    arrived = []
    while (message := one.next_message(now)) is not None:
        one.published(1, now)
        assert TAKEN == two.take(decode(message), now)
        arrived += [part.data for part in two.arrived]
    return arrived


def message_of(epoch: int, known: int, flags: int = PAIRED, *parts: Part, received: int = 0) -> LaneMessage:
    return LaneMessage(2, flags, epoch, known, received, 0, list(parts))


def test_nothing_is_sent_before_both_know_each_other() -> None:
    """What was sent to former lanes of the other end would be taken for the beginning of its new ones."""
    one, two = LanePair(1, 100), LanePair(2, 200)
    one.data.write(b"early")
    first = decode(one.next_message(0.0) or b"")

    assert ([], 100, 0) == (first.parts, first.epoch, first.known)
    assert TAKEN == two.take(first, 0.0)
    pass_on(two, one)
    assert [b"early"] == pass_on(one, two)


def test_an_end_is_answered_until_it_knows() -> None:
    """The other end would wait for ever if the answer to its first message was lost."""
    one, two = LanePair(1, 100), LanePair(2, 200)
    pass_on(one, two)
    pass_on(two, one)
    one.next_message(0.0)  # it is lost
    assert (True, False) == (one.paired, two.paired)
    two.tick(FIRST_RETRY)
    pass_on(two, one, FIRST_RETRY)
    pass_on(one, two, FIRST_RETRY)

    assert two.paired


def test_a_tick_makes_one_message_for_both_lanes() -> None:
    """Redis and both workers would pay twice for each tick."""
    one, _ = paired()
    one.data.write(b"data")
    one.control.write(b"con")
    one.control.write(b"trol")
    message = decode(one.next_message(0.0) or b"")

    assert [(CONTROL, 0, b"control"), (DATA, 0, b"data")] == [(p.lane, p.offset, p.data) for p in message.parts]
    assert None is one.next_message(0.0)


def test_much_is_sent_in_several_messages() -> None:
    """One large publish would be one huge message in Redis, which holds up all others."""
    one, two = paired()
    one.data.write(b"x" * (2 * MESSAGE + 5))

    assert [MESSAGE, MESSAGE, 5] == [len(data) for data in pass_on(one, two)]


def test_a_confirmation_waits_for_something_to_ride_on() -> None:
    """Each message would be answered by another one."""
    one, two = paired()
    one.data.write(b"x")
    pass_on(one, two)
    assert not two.wants_to_send()
    assert CONFIRM_AFTER == two.due()

    two.tick(CONFIRM_AFTER)
    pass_on(two, one, CONFIRM_AFTER)
    assert not one.data.waits()
    assert not one.wants_to_send()  # a confirmation is not confirmed
    assert (float("inf"), float("inf")) == (one.due(), two.due())


def test_much_is_confirmed_at_once() -> None:
    """The sender would wait at its window although everything has arrived."""
    one, two = paired()
    one.data.write(b"x" * CONFIRM_BYTES)
    pass_on(one, two)

    assert two.wants_to_send()


def test_a_lane_takes_no_more_than_its_window() -> None:
    """A peer that is away would cost more memory with every message."""
    one, two = paired()
    while one.data.has_room():
        one.data.write(b"x" * MESSAGE)
    assert WINDOW == one.data.unconfirmed()

    exchange(one, two)
    assert one.data.has_room()


def test_a_gap_is_asked_for_once() -> None:
    """Every message behind a gap would bring everything once more."""
    one, two = paired()
    one.data.write(b"lost")
    one.next_message(0.0)
    for _ in range(5):
        one.data.write(b"more")
        pass_on(one, two)
    asked = decode(two.next_message(0.0) or b"")

    assert (RESEND, 0, 1) == (asked.flags & RESEND, asked.data_received, two.gaps)
    one.data.write(b"more")
    pass_on(one, two)
    assert None is two.next_message(0.0)
    one.take(asked, 0.0)
    one.take(asked, 0.0)  # as if somebody had recorded it
    assert [b"lost" + b"more" * 6] == pass_on(one, two)
    assert [] == pass_on(one, two)
    one.take(asked, RESEND_PAUSE / 2)
    assert not one.data.sendable()


def test_what_has_arrived_is_dropped_and_confirmed_again() -> None:
    """A confirmation that was lost would make the sender repeat for ever, or bytes be read twice."""
    one, two = paired()
    one.data.write(b"once")
    pass_on(one, two)
    one.tick(FIRST_RETRY)
    assert [] == pass_on(one, two)
    pass_on(two, one)

    assert not one.data.waits()


def test_a_part_that_is_partly_known_brings_the_rest() -> None:
    """After a resend in other pieces bytes would be read twice."""
    _, two = paired()
    two.take(LaneMessage(1, PAIRED, 100, 200, 0, 0, [Part(DATA, 0, b"abc")]), 0.0)
    two.take(LaneMessage(1, PAIRED, 100, 200, 0, 0, [Part(DATA, 1, b"bcdef")]), 0.0)

    assert [b"def"] == [part.data for part in two.arrived]


def test_nothing_is_sent_again_while_redis_has_not_answered() -> None:
    """A slow Redis would be given everything twice, and become slower."""
    one, _ = paired()
    one.data.write(b"x")
    one.next_message(0.0)
    one.tick(10 * LONGEST_RETRY)
    assert not one.wants_to_send()

    one.published(1, 10 * LONGEST_RETRY)
    one.tick(11 * LONGEST_RETRY)
    assert one.wants_to_send()


def test_what_reached_nobody_is_tried_again_later() -> None:
    """A peer without subscription would be sent to as fast as Redis answers."""
    one, _ = paired()
    one.data.write(b"x")
    one.next_message(0.0)
    one.published(0, 0.0)
    one.data.write(b"y")
    assert None is one.next_message(0.0)
    one.tick(FIRST_RETRY - 0.01)
    assert not one.wants_to_send()

    one.tick(FIRST_RETRY)
    first = decode(one.next_message(FIRST_RETRY) or b"")
    assert [(0, b"xy")] == [(part.offset, part.data) for part in first.parts]


def test_an_end_that_nothing_reaches_is_known_until_it_is_heard() -> None:
    """A session would move for as long as a worker that is slow may take, or such a worker be taken for a dead one."""
    one, two = paired()
    for receivers, since in ((-1, NEVER), (1, NEVER), (0, 5.0), (-1, 5.0), (0, 5.0), (1, NEVER), (0, 5.0)):
        one.published(receivers, 5.0)
        assert since == one.unreached_since
    two.data.write(b"x")
    assert [b"x"] == pass_on(two, one, 6.0)
    assert NEVER == one.unreached_since

    one.published(0, 6.0)
    one.disconnected()
    assert NEVER == one.unreached_since
    one.connected(7.0)  # it may be the first one that is back
    one.published(0, 7.0)
    assert 7.0 + SETTLING == one.unreached_since


def test_a_connection_that_is_new_makes_itself_heard() -> None:
    """What was published meanwhile would be missed until the sender tries again by itself."""
    one, two = paired()
    one.data.write(b"missed")
    one.next_message(0.0)
    one.published(1, 0.0)
    two.connected(0.1)
    assert [] == pass_on(two, one, 0.1)

    assert [b"missed"] == pass_on(one, two, 0.1)


def test_what_had_no_answer_when_the_connection_ended_is_sent_again() -> None:
    """PUBLISH commands that a dying server has not carried out would be lost."""
    one, two = paired()
    one.data.write(b"x" * 10)
    one.next_message(0.0)
    one.disconnected()
    one.connected(1.0)

    assert [b"x" * 10] == pass_on(one, two, 1.0)


def test_an_end_that_makes_no_progress_fails() -> None:
    """Lanes that nothing brings back would keep publishers waiting for as long as both nodes run."""
    one, _ = paired()
    one.data.write(b"x")
    now = 0.0
    while not one.failed:
        if one.next_message(now) is not None:
            one.published(1, now)
        now = one.due()
        one.tick(now)

    assert 20.0 < now < 60.0
    assert MOST_RETRIES == one._retries


def test_an_absent_end_does_not_fail() -> None:
    """Lanes to a worker that has yet to begin would be begun anew all the time."""
    one, now = LanePair(1, 100), 0.0
    for _ in range(50):
        one.next_message(now)
        one.published(0, now)
        now = one.due()
        one.tick(now)

    assert not one.failed


@pytest.mark.parametrize(
    ("message", "verdict"),
    [
        (message_of(199, 100), IGNORED),  # former lanes of the other end
        (message_of(0, 0), IGNORED),
        (message_of(200, 99), IGNORED),  # former lanes of this end
        (message_of(200, 0), IGNORED),  # it was sent before they were paired
        (message_of(201, 100), BEGUN_ANEW),
        (message_of(201, 0), BEGUN_ANEW),
        (message_of(200, 100, PAIRED, received=1), IGNORED),  # a confirmation of what was never sent
        (message_of(200, 100), TAKEN),
    ],
)
def test_the_epochs_decide(message: LaneMessage, verdict: int) -> None:
    """Messages of former lanes would be taken for those of the new ones."""
    one, _ = paired()

    assert verdict == one.take(message, 0.0)
    assert [] == one.arrived


def test_a_full_receiver_takes_nothing() -> None:
    """A peer that does not keep to its gate would fill the memory of this worker."""
    one, two = paired()
    two.incoming_data.full = True
    one.data.write(b"too much")
    assert [] == pass_on(one, two)

    two.incoming_data.full = False
    one.tick(FIRST_RETRY)
    assert [b"too much"] == pass_on(one, two)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        bytes((FORMAT,)) * (HEAD_BYTES - 1),
        bytes((FORMAT + 1,)) + bytes(HEAD_BYTES - 1),
        message_of(1, 1, 0, Part(2, 0, b"x")).encode(),
        message_of(1, 1, 0, Part(0, 0, b"")).encode(),
        message_of(1, 1, 0, Part(0, 0, b"abc")).encode()[:-1],
        message_of(1, 1, 0, Part(0, 0, b"abc")).encode() + b"x",
    ],
)
def test_what_is_no_message_is_refused(payload: bytes) -> None:
    """Bytes of anybody who may publish in Redis would be taken for those of a worker."""
    with pytest.raises(LaneMessageError):
        decode(payload)


def test_a_message_is_decoded_as_it_was_encoded() -> None:
    """Lanes would carry other bytes than those that were written."""
    sent = LaneMessage(2**63 - 1, PAIRED, 2**60, 7, 2**50, 3, [Part(CONTROL, 9, b"c"), Part(DATA, 2**50, b"d" * 9)])
    got = decode(sent.encode())

    assert (2**63 - 1, PAIRED, 2**60, 7) == (got.sender, got.flags, got.epoch, got.known)
    assert (2**50, 3) == (got.data_received, got.control_received)
    assert [(CONTROL, 9, b"c"), (DATA, 2**50, b"d" * 9)] == [(p.lane, p.offset, p.data) for p in got.parts]
