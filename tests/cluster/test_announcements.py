# Announcements: what every peer is told, and what waits until every peer has confirmed it.
from collections.abc import Iterator

import pytest

from broker.cluster import wire
from broker.cluster.announcements import COLD_ENTRIES, NODE_PATIENCE, Announcements
from broker.cluster.peer import Peer
from broker.net.pauses import Pause
from broker.routing.interest import entry_of
from broker.session.message import NEVER, Message
from tests.cluster.lanes import Lanes, told, written


@pytest.fixture
def lanes() -> Iterator[Lanes]:
    made = Lanes()
    yield made
    made.close()


def announcements(lanes: Lanes) -> Announcements:
    return Announcements(lanes.peers, lanes.reactor, lanes.failures.append, lanes.note_late)


def confirm(peer: Peer, sequence: int) -> None:
    """*peer* has taken all changes up to *sequence*, and had written nothing before."""
    peer.promise(sequence, 0)
    peer.confirm()


def test_every_change_has_a_number_of_its_own(lanes: Lanes) -> None:
    """A confirmation would not say which subscriptions the peer knows."""
    peer = lanes.join(1)
    made = announcements(lanes)
    made.gained(b"a/b", False)
    made.lost(b"a/b", False)
    made.shared(b"group", b"c", 3, 2, True)

    (gained, lost, members) = told(peer)
    assert (wire.GAINED, (1, b"a/b")) == (gained[0], wire.read_change(gained[1]))
    assert (wire.LOST, (2, b"a/b")) == (lost[0], wire.read_change(lost[1]))
    assert (wire.MEMBERS, (3, b"group", b"c", 3, 2, True)) == (members[0], wire.read_members(members[1]))


def test_a_subscription_waits_for_every_peer_and_is_not_read_meanwhile(lanes: Lanes) -> None:
    """A message that is published after the SUBACK would not reach the subscriber [MQTT-3.8.4-1]."""
    one, two = lanes.join(1), lanes.join(2)
    made = announcements(lanes)
    stream = lanes.stream()
    done: list[int] = []
    made.gained(b"a", False)
    made.when_confirmed(stream, lambda: done.append(1))
    sequence = wire.read_number(told(one)[-1][1])
    confirm(one, sequence)
    confirm(two, sequence - 1)
    made.settle(two)
    assert ([], Pause.SUBSCRIBE, 1) == (done, stream.paused, made.waiting())

    confirm(two, sequence)
    made.settle(two)
    assert ([1], 0, 0) == (done, stream.paused, made.waiting())


def test_what_a_peer_sent_before_it_confirmed_has_to_be_processed_first(lanes: Lanes) -> None:
    """A message that was retained before the SUBSCRIBE would be missing among the retained messages."""
    peer = lanes.join(1)
    made = announcements(lanes)
    done: list[int] = []
    made.when_confirmed(lanes.stream(), lambda: done.append(1))
    peer.promise(1, 100)
    peer.taken = 99
    peer.confirm()
    made.settle(peer)
    assert [] == done

    peer.taken = 100
    peer.confirm()
    made.settle(peer)
    assert [1] == done


def test_a_newcomer_does_not_delay_what_waits_already(lanes: Lanes) -> None:
    """It is told everything by a full synchronisation, and never confirms numbers from before that."""
    one = lanes.join(1)
    made = announcements(lanes)
    done: list[int] = []
    made.when_confirmed(lanes.stream(), lambda: done.append(1))
    made.joined(lanes.join(2))
    confirm(one, 1)
    made.settle(one)

    assert [1] == done


def test_those_that_wait_are_called_in_their_order_and_a_failure_costs_one(lanes: Lanes) -> None:
    """One subscription that fails would leave all later ones without an answer."""
    peer = lanes.join(1)
    made = announcements(lanes)
    done: list[int] = []

    def fail() -> None:
        raise RuntimeError("a mistake of ours")

    for then in (lambda: done.append(1), fail, lambda: done.append(3)):
        made.when_confirmed(lanes.stream(), then)
    confirm(peer, 3)
    made.settle(peer)

    assert ([1, 3], 1) == (done, len(lanes.failures))


def test_a_retained_message_is_written_to_every_peer_with_its_stamp(lanes: Lanes) -> None:
    """Workers would answer a SUBSCRIBE with different messages."""
    one, two = lanes.join(1), lanes.join(2)
    made = announcements(lanes)
    stamp = 12345 << 42 | 678
    made.retained(Message(b"a", b"x", 1, True, b"", NEVER), "me", stamp)
    made.not_retained(Message(b"b", b"y", 0, True, b"", NEVER))

    kept, delivered = written(one)
    assert [kept, delivered] == written(two)
    message, flags, owner, given = wire.read_message(kept[1], 0, len(kept[1]), 0.0)
    assert (b"a", b"x", wire.KEEP | wire.DELIVER, "me", stamp) == (message.topic, message.payload, flags, owner, given)
    message, flags, _, _ = wire.read_message(delivered[1], 0, len(delivered[1]), 0.0)
    assert (b"b", b"y", wire.DELIVER) == (message.topic, message.payload, flags)


def test_without_peers_nothing_is_numbered_and_nothing_waits(lanes: Lanes) -> None:
    """Each subscription at the only worker of a node would wait for nobody."""
    made = announcements(lanes)
    stream = lanes.stream()
    done: list[int] = []
    made.gained(b"a", False)
    made.when_confirmed(stream, lambda: done.append(1))

    assert ([1], 0) == (done, stream.paused)
    peer = lanes.join(1)
    made.gained(b"b", False)
    assert (1, b"b") == wire.read_change(told(peer)[0][1])


def test_entries_of_cold_sessions_are_told_together(lanes: Lanes) -> None:
    """Each session that becomes cold would cost a frame to each peer, or a frame be too large to take at once."""
    peer = lanes.join(1)
    made = announcements(lanes)
    entries = [entry_of(b"%d" % number) for number in range(COLD_ENTRIES + 2)]
    for entry in entries:
        made.cold_gained(entry)
    made.cold_lost(entries[0])
    made.when_confirmed(None, lambda: None)

    assert [
        wire.change(wire.COLD_GAINED, 1, b"".join(entries[:COLD_ENTRIES])),
        wire.change(wire.COLD_GAINED, 2, b"".join(entries[COLD_ENTRIES:])),
        wire.change(wire.COLD_LOST, 3, entries[0]),
        wire.number(wire.SYNC, 4),
    ] == [wire.frame(*frame) for frame in told(peer)]


@pytest.mark.parametrize("durable", [False, True])
def test_a_session_that_becomes_cold_is_told_by_its_entries_before_its_filters_are_lost(
    lanes: Lanes, durable: bool
) -> None:
    """Peers would not send for a moment what the session waits for."""
    peer = lanes.join(1)
    made = announcements(lanes)
    made.cold_gained(entry_of(b"a"))
    assert [] == told(peer)
    made.lost(b"a", durable)
    made.gained(b"a", durable)
    made.cold_lost(entry_of(b"a"))
    made.cold_gained(entry_of(b"a"))
    made.shared(b"group", b"c", 3, 2, True)

    expected = [wire.COLD_GAINED, wire.LOST, wire.GAINED, wire.COLD_LOST, wire.COLD_GAINED, wire.MEMBERS]
    if durable:
        expected[1:3] = [wire.LOST_DURABLE, wire.GAINED_DURABLE]
    assert expected == [kind for kind, _body in told(peer)]


def test_a_newcomer_is_not_told_twice_what_waits_to_be_told(lanes: Lanes) -> None:
    """An entry that was lost again before it is told all would come back behind that."""
    one = lanes.join(1)
    made = announcements(lanes)
    made.cold_gained(entry_of(b"a"))
    two = lanes.join(2)
    lanes.peers.all.remove(two)
    made.joined(two)
    lanes.peers.all.append(two)
    made.gained(b"b", False)

    assert [wire.COLD_GAINED, wire.GAINED] == [kind for kind, _body in told(one)]
    assert [wire.GAINED] == [kind for kind, _body in told(two)]


# Sessions that are taken by force from a worker of another node.


def test_the_workers_beside_one_that_does_not_answer_are_waited_for_a_moment(lanes: Lanes) -> None:
    """A client of a dead node would wait for the other workers of that node, until these are given up."""
    here = lanes.join(1)
    former, beside = [lanes.join(shard, node="other") for shard in (1, 2)]
    made = announcements(lanes)
    done: list[int] = []
    made.when_known(former.worker, lambda: done.append(1))
    lanes.now += NODE_PATIENCE - 0.01
    due = made.tick(lanes.now)
    assert lanes.now < due < lanes.now + NODE_PATIENCE
    lanes.now += 0.02
    made.tick(lanes.now)
    assert [] == done  # this node is waited for

    confirm(here, 1)
    made.settle(here)
    assert ([1], 0) == (done, made.waiting())
    assert [False, False, True] == [peer in made.waited_for() for peer in (here, former, beside)]

    made.when_known(former.worker, lambda: done.append(2))
    confirm(here, 2)
    made.settle(here)
    assert [1, 2] == done  # it is known by now that nobody answers there
    confirm(beside, 2)
    assert beside not in made.waited_for()


def test_the_workers_beside_one_that_hangs_know_of_its_session_before_it_is_taken(lanes: Lanes) -> None:
    """They would acknowledge publishes that reach nobody, once that worker has ended the session."""
    here, former, beside = lanes.join(1), lanes.join(2), lanes.join(1, node="other")
    made = announcements(lanes)
    done: list[int] = []
    made.when_known(former.worker, lambda: done.append(1))  # of this node
    confirm(here, 1)
    made.settle(here)
    lanes.now += 2 * NODE_PATIENCE
    made.tick(lanes.now)
    assert [] == done
    confirm(beside, 1)
    made.settle(beside)
    assert [1] == done

    made.when_known(beside.worker, lambda: done.append(2))
    confirm(here, 2)
    made.settle(here)
    lanes.now += 2 * NODE_PATIENCE
    made.tick(lanes.now)
    assert [1] == done
    confirm(former, 2)
    made.settle(former)
    assert [1, 2] == done
