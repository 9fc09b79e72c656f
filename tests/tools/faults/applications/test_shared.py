from tests.tools.faults.applications.shared import Group, SharedJudge
from tests.tools.faults.durable.history import ERROR, Answered, Event, Received, Rollback, Sent, Subscribed

MEMBERS = ("one", "two")


def judge(*events: Event) -> SharedJudge:
    judge = SharedJudge({"group": Group("d/", MEMBERS)})
    for event in events:
        judge.take(event)
    return judge


def published(number: int, code: int = 0, topic: str = "d/a", expiry: int = 0) -> tuple[Event, Event]:
    return Sent(0.0, "p", number, topic, expiry=expiry), Answered(0.0, "p", number, code)


def received(member: str, number: int) -> Event:
    return Received(0.0, member, ("p", number), "d/a", 1, 1)


BEGIN = Subscribed(0.0, "one", "$share/group/d/#")


def test_what_was_acknowledged_and_came_to_no_member_is_missing() -> None:
    found = judge(BEGIN, *published(1), *published(2), received("two", 1))
    assert found.missing() == [("group", ("p", 2))]
    assert not found.complete()
    found.take(received("one", 2))
    assert found.missing() == []
    assert found.complete()


def test_what_came_before_it_was_acknowledged_is_not_missing() -> None:
    sent, answered = published(1)
    assert judge(BEGIN, sent, received("one", 1), answered).missing() == []


def test_a_group_is_owed_what_is_first_sent_behind_its_first_suback() -> None:
    sent, answered = published(1)
    assert judge(sent, BEGIN, sent, answered).missing() == []  # sent again behind it
    assert judge(sent, answered, BEGIN).missing() == []


def test_a_group_is_not_owed_what_is_refused_or_expires_or_has_another_topic() -> None:
    assert judge(BEGIN, *published(1, ERROR), *published(2, expiry=5), *published(3, topic="e/a")).complete()


def test_after_a_loss_of_power_nothing_is_missing() -> None:
    found = judge(BEGIN, *published(1), Rollback(0.0, "", 0.0))
    assert found.missing() == []
    assert found.complete()


def test_each_group_is_owed_each_message() -> None:
    found = judge(BEGIN)
    found.add("second", Group("d/", ("three",)))
    for event in (Subscribed(0.0, "three", "$share/second/d/#"), *published(1), received("two", 1)):
        found.take(event)
    assert found.missing() == [("second", ("p", 1))]


def test_two_members_that_get_one_message_of_qos_2_double_it() -> None:
    sent, answered = Sent(0.0, "p", 1, "d/a", qos=2), Answered(0.0, "p", 1)
    assert judge(BEGIN, sent, answered, received("one", 1), received("one", 1)).doubled() == []
    found = judge(BEGIN, sent, answered, received("one", 1), received("two", 1))
    assert found.doubled() == [("group", ("p", 1), ["one", "two"])]
