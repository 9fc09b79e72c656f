# The judge by itself: histories in which something is wrong, and the same without it.
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.tools.faults.durable.checker import (
    ANSWERS,
    DOUBLED,
    EXPIRY,
    LOST,
    OVERDUE,
    PACKET_ID_CHANGED,
    PACKET_ID_REUSED,
    REORDERED,
    RETAINED,
    SESSION_PRESENT,
    STOPPED,
    UNROUTED,
    WILL_DOUBLED,
    WILL_LOST,
    Checker,
)
from tests.tools.faults.durable.history import (
    Acknowledged,
    Answered,
    Connected,
    Connecting,
    Died,
    Ended,
    Event,
    Fault,
    Kept,
    Late,
    Received,
    Released,
    Rollback,
    Sent,
    Stray,
    Subscribed,
    matches,
)

P, S = "p", "s"  # a publisher and a subscriber


class Story:
    """Builds a history, one event a second."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(self, make: Callable[..., Event], client: str, *words: object) -> "Story":
        self.events.append(make(float(len(self.events)), client, *words))
        return self

    def connect(self, client: str, present: bool, clean: bool = False) -> "Story":
        return self.add(Ended, client).add(Connecting, client, clean).add(Connected, client, present)

    def subscribed(self) -> "Story":
        """The subscriber has its session, and the publisher is connected."""
        return self.connect(P, False).connect(S, False).add(Subscribed, S, "d/#")

    def publish(self, number: int, code: int = 0, topic: str = "d/1") -> "Story":
        return self.add(Sent, P, number, topic).add(Answered, P, number, code)

    def receive(self, number: int, qos: int = 1, packet_id: int = 0, dup: bool = False, topic: str = "d/1") -> "Story":
        return self.add(Received, S, (P, number), topic, qos, packet_id or number, dup)

    def kinds(self, at_least_once: bool = False, wandering: bool = False) -> list[str]:
        return [one.kind for one in Checker(at_least_once, wandering).check(self.events)]


def well() -> Story:
    """Two messages of each QoS, and a reconnect in the middle of the second."""
    story = Story().subscribed().publish(1).publish(2)
    story.receive(1).add(Acknowledged, S, 1).receive(2)
    story.connect(S, True).receive(2, dup=True).add(Acknowledged, S, 2)
    story.publish(3).receive(3, 2).connect(S, True).receive(3, 2, dup=True).add(Released, S, 3)
    return story.publish(4).receive(4, 2, 3).add(Released, S, 3)


def test_a_history_in_which_all_is_well_has_no_violations() -> None:
    """Every run would fail."""
    assert [] == well().kinds()


def test_a_message_that_was_acknowledged_and_never_came_is_lost() -> None:
    """What the run is for would not be seen."""
    assert [LOST] == Story().subscribed().publish(1).kinds()
    assert [] == Story().subscribed().publish(1).receive(1).kinds()


def test_nobody_is_owed_what_was_not_acknowledged_or_sent_before_the_suback() -> None:
    """The judge would find losses where there are none."""
    assert [] == Story().subscribed().add(Sent, P, 1, "d/1").kinds()
    assert [] == Story().subscribed().publish(1, code=0x97).kinds()
    assert [] == Story().subscribed().publish(1, topic="e").kinds()
    early = Story().connect(P, False).connect(S, False).add(Sent, P, 1, "d/1").add(Subscribed, S, "d/#")
    assert [] == early.add(Answered, P, 1).kinds()


def lasting(seconds: int) -> Story:
    """A message that lasts for so many *seconds* after its acknowledgement, a second after it was sent."""
    return Story().subscribed().add(Sent, P, 1, "d/1", False, False, seconds).add(Answered, P, 1)


def receive_with(story: Story, left: int | None, dup: bool = False) -> Story:
    """Message 1 of *story* comes, with an expiry of *left* seconds."""
    return story.add(Received, S, (P, 1), "d/1", 1, 1, dup, left)


def test_a_message_is_owed_until_it_expires() -> None:
    """An expiry would excuse any loss, or what ends while its receiver is away be an alarm."""
    assert [LOST] == lasting(60).kinds()
    assert [] == lasting(1).kinds()


def test_what_has_expired_does_not_come() -> None:
    """A session that is read again would bring what was over, and nobody would see it."""
    for seconds, found in ((STOPPED - 1, []), (STOPPED + 2, [EXPIRY])):
        story = lasting(1)
        story.events.append(Fault(float(len(story.events)) + seconds, "", "the subscriber is away"))
        story.events.append(Received(story.events[-1].at, S, (P, 1), "d/1", 1, 1, False, 1))
        assert found == story.kinds()
    late = [replace(event, dup=True) if isinstance(event, Received) else event for event in story.events]
    assert [] == [one.kind for one in Checker().check(late)]  # a connection had it in time, and was lost


def test_the_expiry_of_a_message_never_grows() -> None:
    """A receiver that passes it on would keep it for too long [MQTT-3.3.2-6]."""
    assert [] == receive_with(lasting(60), 60).kinds() == receive_with(lasting(60), 1).kinds()
    assert [EXPIRY] == receive_with(lasting(60), 61).kinds() == receive_with(lasting(60), None).kinds()
    assert [] == receive_with(lasting(60), 0).kinds()  # less than a second
    assert [EXPIRY] == receive_with(Story().subscribed().publish(1), 0).kinds()


@pytest.mark.parametrize(
    ("expiry", "again", "found"), [(1, True, []), (1, False, [REORDERED]), (60, True, [REORDERED])]
)
def test_what_is_sent_again_comes_late_if_the_first_has_expired(expiry: int, again: bool, found: list[str]) -> None:
    """The judge would ask for an order of messages of which the first did not come, or for none."""
    story = Story().subscribed().add(Sent, P, 1, "d/1", False, False, expiry).add(Sent, P, 2, "d/1")
    if again:
        story.connect(P, True).add(Sent, P, 1, "d/1", False, False, expiry)
    story.add(Answered, P, 1).receive(2)

    assert found == receive_with(story, 1).kinds()


def test_a_clean_start_ends_what_is_owed_and_what_comes_counts_anew() -> None:
    """A session that was ended would be owed its messages, or a new one be blamed for what the old one got."""
    story = Story().subscribed().publish(1).publish(2).receive(2).connect(S, False, clean=True)
    assert [] == story.add(Subscribed, S, "d/#").receive(2).kinds()
    assert [LOST] == story.publish(3).kinds()


def test_no_subscribers_is_wrong_while_one_is_there() -> None:
    """A publish would be acknowledged that reaches nobody, and a message that comes later would hide that."""
    assert [UNROUTED] == Story().subscribed().publish(1, code=0x10).receive(1).kinds()
    assert [] == Story().connect(P, False).publish(1, code=0x10).kinds()


def test_qos_2_comes_once() -> None:
    """A message would be taken twice: under another packet id, or after it was released."""
    story = Story().subscribed().publish(1).receive(1, 2)
    assert [DOUBLED] == Story.kinds(story.receive(1, 2, 7))
    released = Story().subscribed().publish(1).receive(1, 2).add(Released, S, 1).connect(S, True)
    assert [DOUBLED] == released.receive(1, 2, dup=True).kinds()


@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_sent_again_says_so_and_waits_for_a_new_connection(qos: int) -> None:
    """A repetition without DUP, or on a connection that has the message, would be lawful [MQTT-4.4.0-1]."""
    again = Story().subscribed().publish(1).receive(1, qos).connect(S, True).receive(1, qos, dup=False)
    assert [DOUBLED] == again.kinds()
    assert [DOUBLED] == Story().subscribed().publish(1).receive(1, qos).receive(1, qos, dup=True).kinds()


def test_a_publisher_that_sends_qos_1_again_may_double_it() -> None:
    """At least once would be an alarm."""
    story = Story().subscribed().add(Sent, P, 1, "d/1").receive(1).connect(P, True).add(Sent, P, 1, "d/1")
    assert [] == story.add(Answered, P, 1).receive(1, packet_id=2).kinds()


def test_messages_of_one_topic_come_in_their_order() -> None:
    """A message would be overtaken; those of different topics may overtake each other."""
    assert [REORDERED] == Story().subscribed().publish(1).publish(2).receive(2).receive(1).kinds()
    story = Story().subscribed().publish(1).publish(2, topic="d/2")
    assert [] == story.receive(2, topic="d/2").receive(1).kinds()
    early = Story().connect(P, False).connect(S, False).add(Sent, P, 1, "d/1").add(Subscribed, S, "d/#")
    early.add(Sent, P, 2, "d/1").receive(2).connect(P, True).add(Sent, P, 1, "d/1")
    assert [] == early.receive(1, packet_id=1).kinds()


def test_a_stored_session_is_present_and_one_that_was_never_there_is_not() -> None:
    """A client would keep state for a session that is gone, or forget what its session has."""
    assert [SESSION_PRESENT] == Story().connect(S, True).kinds()
    assert [SESSION_PRESENT] == Story().subscribed().connect(S, False).kinds()
    assert [SESSION_PRESENT] == Story().subscribed().connect(S, True, clean=True).kinds()
    assert [] == Story().connect(S, False).connect(S, False).kinds()  # without SUBACK it may not be stored
    assert [] == Story().add(Connecting, S, False).connect(S, True).kinds()  # of a CONNECT that nobody answered
    maybe = Story().subscribed().add(Connecting, S, True)  # a clean start that nobody answered
    for present in (True, False):
        assert [] == replace_events(maybe).connect(S, present).kinds()


def test_a_clean_start_that_was_not_answered_may_come_late_and_once() -> None:
    """The CONNECT of a connection that is gone may wait in a worker that is stopped."""
    story = Story().subscribed().publish(1).receive(1).add(Connecting, S, True).connect(S, True)
    story.receive(1, packet_id=2).add(Subscribed, S, "d/#")  # of the session before
    story.publish(2).connect(S, False).add(Subscribed, S, "d/#").publish(3).receive(3)
    assert [] == story.kinds()
    assert [SESSION_PRESENT] == story.connect(S, False).kinds()


def test_a_clean_start_that_was_not_answered_may_come_behind_one_that_was() -> None:
    """A worker that was stopped may find it in its socket, while another one has answered the next."""
    story = Story().subscribed().add(Connecting, S, True).connect(S, False, clean=True)
    assert [] == replace_events(story).add(Subscribed, S, "d/#").publish(1).connect(S, False).kinds()
    answered = Story().subscribed().connect(S, False, clean=True).add(Subscribed, S, "d/#").publish(1)
    assert [SESSION_PRESENT] == answered.connect(S, False).kinds()
    for _ in range(int(OVERDUE)):
        story.add(Fault, "", "nothing, for a second")
    assert [] == replace_events(story).connect(S, False).kinds(), "it has come meanwhile"
    assert [LOST] == story.connect(S, True).add(Subscribed, S, "d/#").publish(1).kinds()


def test_a_clean_start_that_comes_late_frees_packet_ids() -> None:
    """The next session is there when the client comes again, and knows nothing of what the client has in flight."""
    story = Story().subscribed().publish(1).add(Connecting, S, True).connect(S, True).receive(1, 2, 9)
    assert [PACKET_ID_REUSED] == replace_events(story).publish(2).receive(2, 2, 9).kinds()
    assert [] == story.connect(S, True).publish(2).receive(2, 2, 9).kinds()


def replace_events(story: Story) -> Story:
    """A copy."""
    copy = Story()
    copy.events = [replace(event) for event in story.events]
    return copy


@pytest.mark.parametrize("qos", [1, 2])
def test_a_packet_id_in_flight_is_not_given_to_another_message(qos: int) -> None:
    """The client would take the second message for the first."""
    story = Story().subscribed().publish(1).publish(2).receive(1, qos, 9)
    assert [PACKET_ID_REUSED] == replace_events(story).receive(2, qos, 9).kinds()
    story.add(Acknowledged if qos == 1 else Released, S, 9)
    assert [] == story.receive(2, qos, 9).kinds()


# APPLICATION clients.


def application(mqtt_5: bool = True) -> Story:
    """As `Story.subscribed()`; the subscriber is an APPLICATION client."""
    story = Story().connect(P, False).add(Connecting, S, False, True, mqtt_5).add(Connected, S, False)
    return story.add(Subscribed, S, "d/#")


def back(story: Story, mqtt_5: bool = True) -> Story:
    """Its connection ends, and it connects again."""
    return story.add(Ended, S).add(Connecting, S, False, True, mqtt_5).add(Connected, S, True)


def test_an_application_client_gets_a_message_again_under_its_packet_id() -> None:
    """The client would take it for another one, if the first has it in flight."""
    assert [PACKET_ID_CHANGED] == back(application().publish(1).receive(1)).receive(1, packet_id=2, dup=True).kinds()
    assert [] == back(application().publish(1).receive(1)).receive(1, dup=True).kinds()
    device = Story().subscribed().publish(1).receive(1).connect(S, True).receive(1, packet_id=2, dup=True)
    assert [] == device.kinds()


@pytest.mark.parametrize("qos", [1, 2])
def test_an_older_application_client_may_be_sent_a_message_again_over_its_connection(qos: int) -> None:
    """RETRY_ALL would be an alarm; or be lawful with MQTT 5 [MQTT-4.4.0-1], or without DUP."""
    for mqtt_5, dup, found in ((False, True, []), (False, False, [DOUBLED]), (True, True, [DOUBLED])):
        assert found == application(mqtt_5).publish(1).receive(1, qos).receive(1, qos, dup=dup).kinds()


def test_qos_0_comes_at_most_once_and_is_owed_to_nobody() -> None:
    """Each loss at QoS 0 would be an alarm, or a repetition be lawful."""
    story = Story().connect(P, False).connect(S, False).add(Subscribed, S, "d/#", 0).publish(1)
    assert [] == replace_events(story).kinds()
    assert [] == replace_events(story).receive(1, 0).kinds()
    assert [DOUBLED] == story.receive(1, 0).connect(S, True).receive(1, 0).kinds()
    published = Story().subscribed().add(Sent, P, 1, "d/1", False, False, 0, 0)
    assert [] == published.publish(2).receive(2).kinds(), "the first one has no answer"


def test_what_must_be_stored_is_what_the_client_has_not_acknowledged() -> None:
    """A position that has passed a message would be found wrong where the client has it, or right where it is lost."""

    def unfinished(story: Story) -> list[int]:
        checker = Checker()
        for event in story.events:
            checker.take(event)
        return [number for _, number in checker.unfinished(S)]

    assert [1, 2] == unfinished(application().publish(1).publish(2).receive(1))
    assert [2] == unfinished(application().publish(1).publish(2).receive(1).add(Acknowledged, S, 1))
    assert [2] == unfinished(application().publish(1).publish(2).receive(1, 2)), "PUBREC was sent"
    assert [2] == unfinished(application().publish(1).publish(2).receive(1, 2).add(Released, S, 1))
    assert [] == unfinished(application().add(Sent, P, 1, "d/1")), "it may have come, or not"
    assert [] == unfinished(application().publish(1).add(Connecting, S, True)), "the session may have ended"
    again = application(False).publish(1).receive(1).add(Acknowledged, S, 1).receive(1, dup=True)
    assert [] == unfinished(again), "the acknowledgement may be on its way"
    assert [1] == unfinished(again.connect(S, True).receive(1, dup=True)), "it was lost"


def test_answers_come_in_the_order_of_publishes() -> None:
    """A client would take one answer for another [MQTT-4.6.0-2]."""
    story = Story().subscribed().add(Sent, P, 1, "e").add(Sent, P, 2, "e")
    assert [ANSWERS] == story.add(Answered, P, 2).add(Answered, P, 1).kinds()
    assert [ANSWERS] == Story().subscribed().add(Stray, P, "PUBACK 7").kinds()


def test_what_is_acknowledged_late_counts() -> None:
    """A worker that wakes up could acknowledge what it has not stored for sessions that are another worker's."""
    story = Story().subscribed().add(Sent, P, 1, "d/1").add(Late, P, "PUBACK", 1)
    assert [LOST] == story.kinds()
    assert [] == story.receive(1).kinds()
    assert [] == Story().subscribed().add(Late, S, "PUBLISH").kinds()


def test_what_is_retained_is_the_last_that_was_acknowledged_or_a_later_one() -> None:
    """New subscribers would find what was replaced, or nothing."""

    def found(number: int | None) -> list[str]:
        story = Story().connect(P, False)
        for each, deletes in ((1, False), (2, False), (3, True)):
            story.add(Sent, P, each, "r", True, deletes)
        story.add(Answered, P, 1)
        return story.add(Answered, P, 2).add(Kept, "reader", "r", number).kinds()

    assert [RETAINED] == found(1) == found(4)
    assert [] == found(2) == found(None)  # the deletion was not answered, and may have happened
    kept = Story().connect(P, False).add(Sent, P, 1, "r", True).add(Answered, P, 1)
    assert [RETAINED] == kept.add(Kept, "reader", "r", None).kinds()


def test_a_will_is_published_once() -> None:
    """The death of a client would go unnoticed, or be told twice."""

    def heard(*dups: bool) -> list[str]:
        story = Story().connect(S, False).add(Subscribed, S, "w/#").add(Died, "m", "w/m")
        for dup in dups:
            story.add(Received, S, ("m", 1), "w/m", 1, 1, dup).connect(S, True)
        return story.kinds()

    assert [WILL_LOST] == heard()
    assert [WILL_DOUBLED] == heard(False, False)
    assert [] == heard(False, True)


def test_a_rollback_excuses_its_last_moments_and_nothing_before() -> None:
    """A power cut would be blamed for what its class does not promise, or excuse every loss."""

    def lost(since: float) -> list[str]:
        story = Story().subscribed().publish(1)  # answered at 8
        return story.add(Rollback, "", since).kinds()

    assert [LOST] == lost(8.5)
    assert [] == lost(7.5) == lost(5.5)  # the answer, and the subscription


def test_a_rollback_excuses_what_comes_again_if_it_was_done_then() -> None:
    """A message whose acknowledgement is undone would be an alarm, or any repetition be lawful."""

    def doubled(since: float) -> list[str]:
        story = Story().subscribed().publish(1).receive(1, 2).add(Released, S, 1)  # at 10
        return story.add(Rollback, "", since).connect(S, True).receive(1, 2, 5).kinds()

    assert [DOUBLED] == doubled(10.5)
    assert [] == doubled(9.5)


def test_what_came_again_may_come_once_more_after_the_next_rollback() -> None:
    """Two power cuts in a row would be an alarm, as the message was done before the first."""

    def doubled(between: bool) -> list[str]:
        story = Story().subscribed().publish(1).receive(1, 2).add(Released, S, 1).add(Rollback, "", 9.5)
        if between:
            story = story.connect(S, True).receive(1, 2)
        return story.add(Rollback, "", 14.5).connect(S, True).receive(1, 2, 5).kinds()

    assert [] == doubled(True) == doubled(False)


def test_what_was_not_answered_at_a_rollback_may_come_twice() -> None:
    """It may be stored, and its publisher sends it again: that would be an alarm, or any repetition be lawful."""

    def doubled(since: float) -> list[str]:
        story = Story().subscribed().publish(1).add(Rollback, "", since).add(Sent, P, 1, "d/1").add(Answered, P, 1)
        return story.receive(1, 2).add(Released, S, 1).receive(1, 2, 5).kinds()

    assert [DOUBLED] == doubled(8.5)
    assert [] == doubled(7.5)  # before the answer


def test_a_rollback_may_bring_a_session_back_or_end_it() -> None:
    """A session that was begun or ended in the last moments would be an alarm."""
    for present in (True, False):
        story = Story().subscribed().add(Rollback, "", 5.5)  # SUBACK was at 6
        assert [] == story.connect(S, present).kinds()
    story = Story().subscribed().add(Rollback, "", 6.5)
    assert [SESSION_PRESENT] == story.connect(S, False).kinds()


def test_filters_match_as_the_specification_says() -> None:
    """The judge would not know what is owed to whom."""
    for filter, topic in (("d/#", "d/a/b"), ("d/#", "d"), ("d/+/b", "d/a/b"), ("d/a", "d/a"), ("+", "d")):
        assert matches(filter, topic), (filter, topic)
    for filter, topic in (("d/+", "d/a/b"), ("d/+/b", "d/a"), ("d", "d/a"), ("e/#", "d/a"), ("d/a/b", "d/a")):
        assert not matches(filter, topic), (filter, topic)


# Where each publish goes through a log.


def of_one_connection() -> Story:
    """The subscriber has a session that ends with its connection."""
    story = Story().connect(P, False).add(Connecting, S, True, False, True, False).add(Connected, S, False)
    return story.add(Subscribed, S, "d/#")


def test_qos_1_that_is_dispatched_again_is_no_violation_and_qos_2_is() -> None:
    """Each death of a worker would be a failure; or exactly once mean nothing."""
    for qos, found in ((0, []), (1, []), (2, [DOUBLED])):
        again = Story().subscribed().publish(1).receive(1, qos, 5).add(Acknowledged, S, 5).add(Released, S, 5)
        again.receive(1, qos, 6)
        assert found == again.kinds(at_least_once=True)
        assert [DOUBLED] == again.kinds()


def test_qos_0_is_never_dispatched_again() -> None:
    """QoS 0 is at most once, for sessions of all kinds."""
    for story in (Story().subscribed(), of_one_connection()):
        story.add(Sent, P, 1, "d/1", False, False, 0, 0).receive(1, 0)
        assert [] == story.kinds(at_least_once=True)
        assert [DOUBLED] == story.receive(1, 0).kinds(at_least_once=True)


def test_a_session_of_one_connection_may_miss_messages_and_get_qos_2_again_in_order() -> None:
    """A run would fail for what nobody promises; or not notice another order."""
    story = of_one_connection().publish(1).publish(2).publish(3).receive(1, 2, 5).add(Released, S, 5).receive(1, 2, 6)
    assert [] == story.kinds(at_least_once=True)
    assert [REORDERED] == story.receive(3, 2, 7).receive(2, 2, 8).kinds(at_least_once=True)


def test_what_is_not_sent_again_may_come_behind_what_follows_over_the_next_connection() -> None:
    """A run would fail, as what a stopped worker has comes late; or not notice another order of one connection."""
    story = Story().connect(S, False).add(Subscribed, S, "d/#")
    for number in (1, 2):
        story.add(Connecting, P, True, False, True, False).add(Connected, P, False)
        story.add(Sent, P, 2 * number, "d/1").add(Sent, P, 2 * number + 1, "d/1")
    story.receive(4).receive(2)
    assert [] == story.kinds(at_least_once=True) == story.kinds(wandering=True)
    assert [REORDERED] == story.kinds()
    story.add(Sent, P, 6, "d/1").add(Sent, P, 7, "d/1").receive(7).receive(6)
    assert [REORDERED] == story.kinds(at_least_once=True) == story.kinds(wandering=True)
