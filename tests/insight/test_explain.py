# What is known of a client, in sentences: each question that a person has finds its answer, and nothing else is said.
from typing import Any, Final, cast

import pytest

from broker.insight.explain import explain, place, size, span
from broker.insight.facts import DecisionFacts, EndFacts, Facts, together
from broker.insight.reason_words import words_of
from broker.overload.admit import CLOSE, DROP, FILTER, PAUSE, REFUSE
from broker.overload.level import backbone_lag_of
from broker.reasons import CloseReason, DropReason, FilterRefusal, PauseReason, PublishRefusal

GONE: EndFacts = {
    "reason": "slow_consumer",
    "code": 0x97,
    "ago": 90.0,
    "detail": "",
    "address": "192.0.2.1:5000",
    "undelivered": 0,
}
REFUSED: EndFacts = {
    "reason": "bad_user_name_or_password",
    "code": 0x86,
    "ago": 7.0,
    "detail": "user 'alice', client 'phone'",
    "address": "192.0.2.2:5000",
    "undelivered": 0,
}
HELD = {
    "reason": "credits",
    "since": 0.4,
    "due": 0.3,
    "patience": 29.6,
    "gate": None,
    "limit": "",
    "unread": 0,
    "honoured": True,
}
PUBLISH = {
    "waits": True,
    "size": 300,
    "receivers": 200,
    "stored": 0,
    "cost": 222,
    "base": 10,
    "for_bytes": 2,
    "for_deliveries": 200,
    "for_storing": 0,
    "for_retaining": 0,
    "for_qos": 10,
    "needs": ["weir/0", "weir/0 memory", "weir/0 outbound"],
}
OVERLOADED = {
    "enabled": True,
    "level": 6.2,
    "node_level": 6.2,
    "worker_level": 0.0,
    "cause": "lag",
    "cause_node": "weir",
    "cause_worker": 1,
    "value": 2.4,
    "target": 0.05,
}


def facts(**known: object) -> Facts:
    """The facts of a connected client without problems, changed by *known*."""
    usual: dict[str, Any] = {
        "client": "phone",
        "node": "weir",
        "worker": 0,
        "connection": {
            "address": "192.0.2.1:5000",
            "transport": "tcp",
            "version": 5,
            "user": "alice",
            "age": 200.0,
            "silent": 1.0,
            "keep_alive": 90.0,
        },
        "turns": None,
        "connecting": None,
        "session": {"subscriptions": 3, "expiry": 0},
        "ended": None,
        "refused": None,
        "held": None,
        "publish": None,
        "prices": {"publish": 10, "bytes_per_credit": 128, "delivery": 1, "stored": 0, "retained": 10, "qos": 5},
        "credits": {"balance": 50_000, "cap": 50_000, "refill": 50_000.0},
        "contended": [],
        "level": {**OVERLOADED, "level": 0.0, "cause": ""},
        "limits": [],
        "reader": {
            "writable": True,
            "unsent": 0,
            "high": 1 << 20,
            "low": 1 << 19,
            "stalled": None,
            "patience": 60.0,
            "unacknowledged": 0,
            "window": 1024,
            "waiting": 0,
            "may_wait": 1000,
        },
        "pace": None,
        "losses": [],
        "untold": 0,
        "decisions": [],
        "override": None,
        "configured": None,
        "unacknowledged": 0,
        "long": 0,
        "logged": 0,
        "stores": [],
        "log": None,
        "logs": [],
        "backbone": None,
        "unanswered": [],
    }
    assert set(known) <= set(usual), known
    return cast(Facts, usual | known)


def away(**known: object) -> Facts:
    """The facts of a client that has neither connection nor session, changed by *known*."""
    nothing: dict[str, object] = dict.fromkeys(("connection", "session", "credits", "reader"))
    return facts(**(nothing | known))


def decision(kind: int, reason: str, ago: float = 3.0, times: int = 1) -> DecisionFacts:
    return {"kind": kind, "reason": reason, "first": ago + times - 1, "last": ago, "times": times}


def said(found: Facts) -> str:
    return "\n".join(explain(found))


def test_who_waits_for_a_store_is_told_which_and_why() -> None:
    """Whoever waits for a PUBACK would be told that nothing is wrong."""
    full = [{"resource": "weir/1 store", "why": "memory_full", "replicas": 0, "needed": 0}]

    assert (
        "3 publishes of it have durable receivers and no acknowledgement yet: they have to acknowledge it first, or it "
        "has to be stored for them. The store of worker 1 of node weir stores nothing now: Redis has reached its "
        "maxmemory."
    ) in said(facts(unacknowledged=3, stores=full))
    lone = [{"resource": "weir/1 store", "why": "replicas", "replicas": 1, "needed": 2}]
    assert "stores nothing now: too few replicas of Redis have what is stored (1 of 2)." in said(
        facts(unacknowledged=1, stores=lone)
    )
    assert "1 publish of it has durable" in said(facts(unacknowledged=1))
    assert "stores nothing" not in said(facts(unacknowledged=1))
    assert "stores nothing" not in said(facts(stores=full))  # it publishes nothing that needs it
    assert "stores nothing now" in said(facts(held=HELD, stores=full))


def test_a_client_without_trouble_is_told_in_a_few_sentences() -> None:
    """The text about a healthy client would be long, or look like a problem."""
    told = explain(facts())

    assert "phone has been connected as alice to worker 0 of node weir for 3 min" in told[0]
    assert "with MQTT 5.0" in told[0]
    assert told[1].startswith("Nothing throttles it. It has 50000 of 50000 credits")
    assert "The overload level is 0: nothing is overloaded." in told
    assert "It reads all that it is sent." in told
    assert 5 == len(told)


def test_who_sends_more_than_its_share_is_told_so() -> None:
    """Its publishes wait for seconds, and nothing would explain that: neither credits nor a gate hold it."""
    told = said(facts(turns={"behind": 1.5, "ready": 900}))

    assert "It sends more than its worker serves in its turns: for 1.5 s each turn has left something" in told
    assert "900 clients of the worker wait for their turns" in told and "node.workers" in told
    assert "Nothing throttles it" not in told


def test_who_is_held_for_credits_is_told_by_what_and_until_when() -> None:
    """The text would lack the cost of a publish, the overloaded worker, or the time when the client continues."""
    contended = {"resource": "weir/0", "node": "weir", "worker": 1, "signal": "weir/0", "value": 3.0, "target": 0.05}
    credits = {"balance": 22, "cap": 1000, "refill": 193.4}
    told = said(facts(held=HELD, publish=PUBLISH, credits=credits, contended=[contended], level=OVERLOADED))

    assert "It has been throttled for 400 ms (credits)" in told
    assert "It needs worker 0 of node weir, which is overloaded. The report of worker 1 of node weir:" in told
    assert "takes longer than without load, 150 ms, which is 3 times the target" in told
    assert "It continues in 300 ms, or as soon as the resource has no other work." in told
    assert "If that takes more than 30 s, the publish is not accepted (overload.wait)." in told
    costs = "costs 222 credits: 10 for any publish, 2 for its 300 bytes, 200 for its 200 receivers, 10 for its QoS."
    assert f"{costs} It has 22 of 1000 credits, and gets 193 every 200 ms." in told
    assert "The overload level is 7 of 10. The cause is the signal lag of worker 1 of node weir: clients wait" in told
    assert "120 ms, which is 2.4 times the target (overload.lag)" in told
    assert "`weir limit set phone --no-protection --ttl 1h --reason TEXT`" in told
    assert "Its keep alive is suspended meanwhile" in told


def test_what_storing_costs_is_told_where_something_is_stored() -> None:
    """A client would be throttled for costs that nobody finds; or be told of a store that there is not."""
    stored = {**PUBLISH, "stored": 3, "for_storing": 60, "cost": 282}
    prices = {**facts()["prices"], "stored": 20}

    assert "200 for its 200 receivers, 60 for storing it for 3 receivers, 10 for its QoS." in said(
        facts(publish=stored)
    )
    assert "stor" not in said(facts(publish=PUBLISH))
    assert "1 for each receiver, 20 more for each that stores it, 5 times its QoS," in said(facts(prices=prices))
    assert "stor" not in said(facts())


def test_who_catches_up_is_told_how_quickly_and_how_much_is_left() -> None:
    """Messages would be late, and nobody could say why, or for how long."""
    told = said(facts(pace={"messages": 10, "bytes": 20_480, "left": 29}))

    assert "what waited for it is delivered at no more than 10 messages and 20 KiB a second" in told
    assert "(delivery.replay_messages, delivery.replay_bytes): 29 messages are left." in told
    assert "at no more than 1 message a second" in said(facts(pace={"messages": 1, "bytes": 0, "left": 1}))


def test_a_worker_that_is_full_is_told_as_what_is_full_of_it() -> None:
    """The text would blame the speed of a worker that is quick; or list the parts of each worker that is needed."""
    contended = {"node": "weir", "worker": 1, "signal": "memory", "value": 1.1, "target": 0.85}
    parts = [{**contended, "resource": f"weir/1 {part}"} for part in ("memory", "outbound")]
    needed = {**PUBLISH, "needs": ["weir/0", "weir/0 memory", "weir/0 outbound", "weir/1", "weir/1 memory"]}
    told = said(facts(held=HELD, publish=needed, contended=parts, level=OVERLOADED))

    assert "It needs the memory of worker 1 of node weir, which is overloaded." in told
    assert "It needs the outbound bytes of worker 1 of node weir, which is overloaded." in told
    assert "It needs worker 0 of node weir and worker 1 of node weir." in told


def test_who_is_held_between_its_publishes_is_told_how_often() -> None:
    """The client is throttled between any two publishes: the text would say that it is throttled for a millisecond."""
    decisions = [decision(PAUSE, "credits", 0.0, 31)]

    told = said(facts(held=HELD, publish=PUBLISH, level=OVERLOADED, decisions=decisions))
    assert "It is throttled, 31 times within the last 30 s (credits)" in told
    assert "Recent decisions" not in told


def test_a_dear_publish_is_told_from_what_balance_it_passes() -> None:
    """The text would not say how a publish is accepted that costs more than the maximum balance."""
    credits = {"balance": 300, "cap": 1000, "refill": 20.0}

    assert "500 credits are enough" in said(facts(held=HELD, publish={**PUBLISH, "cost": 600}, credits=credits))
    assert "are enough" not in said(facts(held=HELD, publish=PUBLISH, credits=credits))


def test_who_waits_at_a_gate_is_told_whose_and_that_it_may_give_up() -> None:
    """The text would name the worker of the client, and not the busy one."""
    gate = {"resource": "weir/1", "publishes": 1, "bytes": 5 << 20, "delay": 0.21, "refuses": False, "trouble": ""}
    held = {**HELD, "reason": "gate", "due": None, "gate": gate, "unread": 60_000, "honoured": False}
    told = said(facts(held=held))

    assert "It waits for worker 1 of node weir, which has 1 publish (5120 KiB) to process first" in told
    assert "210 ms longer than without load" in told
    assert "It continues as soon as the resource has room." in told
    assert "Its keep alive runs on meanwhile (overload.keepalive_while_throttled is strict)." in told
    assert "59 KiB that it sent wait in the worker" in told
    assert "a client that sends more than the worker buffers may give up by itself" in told


def test_who_waits_for_the_log_is_told_why_that_takes_nothing() -> None:
    """The text would blame a worker, and nobody look at Kafka."""
    gate = {"resource": "weir/1 log", "publishes": 20, "bytes": 5 << 20, "delay": 3.0, "refuses": True}
    held = {**HELD, "reason": "gate", "due": None, "gate": {**gate, "trouble": "the log cannot be reached (k:1)"}}
    told = said(facts(held=held))

    assert "It waits for the log of worker 1 of node weir, which has 20 publishes" in told
    assert "Nothing is appended there now: the log cannot be reached (k:1)." in told
    assert "busy with other work" not in told


def test_a_quota_is_told_with_its_rate_its_setting_and_when_it_has_room() -> None:
    """The text would lack the quota, its setting, or the time when it has room."""
    held = {**HELD, "reason": "quota_session_messages", "due": 8.0, "patience": None, "limit": "3:30"}
    told = said(facts(held=held))
    assert "(quota_session_messages of 3:30): the client published as many messages as its quota allows." in told
    assert "It continues in 8.0 s. The setting is quotas.session.incoming_messages." in told
    assert "`weir limit set phone --rate 100/s --ttl 1h --reason TEXT`" in told
    assert "not accepted" not in told

    limit = {"name": "QUOTA_TENANT_BYTES", "rate": "1MiB/s", "room": -20.0}
    decisions = [decision(REFUSE, "quota_tenant_bytes", 2.0, 4)]
    free = said(facts(limits=[limit], decisions=decisions))
    assert "The quota quotas.tenant (bytes) of 1MiB/s allows 0 bytes now." in free
    assert "Recent decisions: between 5.0 s and 2.0 s ago Weir refused 4 publishes of it (quota_tenant_bytes)" in free
    assert "The setting is quotas.tenant.incoming_bytes." in free


def test_a_slow_reader_is_told_what_it_is_owed_and_what_it_missed() -> None:
    """The text would not say that the client reads too slowly."""
    slow = {**facts()["reader"], "writable": False, "unsent": 2 << 20, "stalled": 12.0, "waiting": 7}  # type: ignore[dict-item]
    lost = [{"reason": "not_writable", "count": 1, "first": 3.0, "last": 3.0}]
    told = said(facts(reader=slow, losses=lost))

    assert "It reads too slowly. 2048 KiB wait to be sent to it, and 7 of at most 1000 messages are queued" in told
    assert "(1024 KiB) and not yet below the low one (512 KiB): QoS 0 is skipped meanwhile." in told
    assert "It has read nothing for 12 s; after 60 s its connection is closed (delivery.slow_consumer_timeout)." in told
    assert "1 message did not reach it, 3.0 s ago (not_writable): " in told
    full = {**facts()["reader"], "unacknowledged": 1024, "waiting": 3}  # type: ignore[dict-item]
    assert "It has 1024 messages to acknowledge first" in said(facts(reader=full))


def test_who_lost_messages_is_told_how_many_why_and_when() -> None:
    """An operator could not tell an old loss from one that goes on, or whether the client knows of it."""
    losses = [
        {"reason": "expired", "count": 2, "first": 300.0, "last": 240.0},
        {"reason": "queue_full", "count": 70, "first": 400.0, "last": 1.5},
    ]
    told = said(facts(losses=losses, untold=72))

    assert told.index("70 messages did not reach it, between 7 min and 1.5 s ago (queue_full): ") < told.index(
        "2 messages did not reach it, between 5 min and 4 min ago (expired): "
    )
    assert "It is still to be told of 72 lost messages, by a gap notice." in told


def test_who_is_gone_is_told_how_it_ended_the_latest_first() -> None:
    """A refused CONNECT of another program would hide why the client's own connection ended."""
    told = said(away(ended=GONE, refused=REFUSED))

    assert "phone is not connected, and has no session here." in told
    assert told.index("A CONNECT in its name was refused 7.0 s ago") < told.index("Its last connection ended 90 s ago")
    assert "(slow_consumer, 0x97)" in told
    assert "Detail: user 'alice', client 'phone'." in told
    assert "The overload level" not in told
    assert "2 messages did not reach it (session_ended)" in said(away(ended={**GONE, "undelivered": 2}))
    assert "its CONNECT was refused" in said(away(refused=REFUSED))
    assert "phone is not connected. Its session, with 1 filter, is at worker 0 of node weir." in said(
        away(session={"subscriptions": 1, "expiry": 60})
    )


def test_who_waits_to_be_let_in_is_told_so() -> None:
    """The text would say that the client is not connected, and not that its CONNECT waits."""
    told = said(away(connecting={"waited": 2.5, "waiting": 300, "due": 0.01}))

    assert "The CONNECT of phone has waited at worker 0 of node weir for 2.5 s: more clients connect" in told
    assert "300 CONNECTs wait there, and the next one passes at once." in told


def test_what_an_administrator_decided_is_told() -> None:
    """The text would not say that an administrator set the client's limits."""
    configured = {"by": "pattern", "name": "ph*", "settings": "queue = 5, exempt = true", "exempt": True}
    told = said(facts(configured=configured))
    assert "The configuration has other limits for it than for other clients" in told
    assert "([[clients.overrides]], pattern 'ph*'): queue = 5, exempt = true. Credits do not throttle it." in told
    assert "credits, and gets" not in told
    override = {"rate": "5/s", "exempt": True, "left": 1800.0, "by": "root", "reason": "a demo"}
    told = said(facts(override=override))

    assert "An administrator (root) decided that it may publish 5/s and credits do not throttle it" in told
    assert "for 30 min more: a demo. `weir limit drop phone` ends that." in told


def test_protection_that_is_off_is_told() -> None:
    """The text would not say what throttles clients nevertheless."""
    told = said(facts(level={**OVERLOADED, "enabled": False}))

    assert "Overload protection is switched off (overload.enabled): credits throttle no client." in told
    assert "Gates, which bound memory, and quotas still do." in told
    assert "At level 0, credits throttle" not in said(facts(level={**OVERLOADED, "enabled": False, "level": 0.0}))
    assert "credits, and gets" not in told


@pytest.mark.parametrize("signal", ["lag", "outbound", "memory", "redis", "connect", "weir/1", ""])
def test_each_cause_has_its_words(signal: str) -> None:
    """The text would name a level without the setting of its cause."""
    target = 0.5
    told = said(facts(level={**OVERLOADED, "cause": signal, "value": 1.5, "target": target}))

    amount = {"outbound": "75 %", "memory": "75 %", "redis": "75 %", "": "It falls"}.get(signal, "750 ms")
    assert amount in told
    setting = {"connect": "connect_delay", "lag": "lag"}
    setting |= {name: f"{name}_percent" for name in ("outbound", "memory", "redis")}
    assert f"overload.{setting.get(signal, 'gate_delay')}" in told or not signal


def test_a_level_that_falls_is_not_told_as_if_its_cause_went_on() -> None:
    """A signal that is low again would be named as the cause of a level that still falls."""
    told = said(facts(level={**OVERLOADED, "cause": "lag", "value": 0.01, "target": 0.05}))

    assert "It falls, as the signal lag of worker 1 of node weir is below its target (overload.lag) again." in told
    assert "times the target" not in told


REASONS = [
    *((DROP, reason.label) for reason in DropReason),
    *((PAUSE, reason.label) for reason in PauseReason),
    *((REFUSE, reason.label) for reason in PublishRefusal),
    *((FILTER, reason.label) for reason in FilterRefusal),
    *((CLOSE, reason.label) for reason in CloseReason),
]


@pytest.mark.parametrize(("kind", "label"), REASONS)
def test_each_reason_has_its_words(kind: int, label: str) -> None:
    """A reason that was added would end `weir why` in a traceback, or be told by its label alone."""
    happened, helps = words_of(kind, label, "phone")

    assert happened and not happened.endswith(".")
    assert not helps or helps.endswith((".", "`"))
    assert "CLIENT" not in helps
    assert said(facts(decisions=[decision(kind, label)]))
    if kind == CLOSE:
        assert happened in said(away(ended={**GONE, "reason": label}))


def test_what_several_workers_know_is_put_together() -> None:
    """A client that changed its worker would be shown as gone, or its former connection not at all."""
    here = facts(worker=1)
    before = away(worker=0, ended=GONE)
    earlier = away(worker=2, ended={**GONE, "ago": 300.0, "reason": "kicked"}, refused=REFUSED)
    nothing = away(worker=3)

    found = together([nothing, earlier, before, here], [4])
    assert found is not None
    assert (1, GONE, REFUSED, [4]) == (found["worker"], found["ended"], found["refused"], found["unanswered"])
    assert "worker 4 did not answer" in said(found)
    assert None is together([nothing], [])


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (-1.0, "0 ms"),
        (0.0212, "21 ms"),
        (0.96, "1.0 s"),
        (61.4, "61 s"),
        (121.0, "2 min"),
        (7300.0, "2 h"),
        (2e5, "2 days"),
    ],
)
def test_a_time_is_told_in_the_unit_that_suits(seconds: float, told: str) -> None:
    """Nobody reads 200000 s, or 0.0 s."""
    assert told == span(seconds)


@pytest.mark.parametrize(
    ("count", "told"), [(1, "1 byte"), (9999, "9999 bytes"), (10_240, "10 KiB"), (1 << 30, "1024 MiB")]
)
def test_a_size_is_told_in_the_unit_that_suits(count: int, told: str) -> None:
    """Nobody reads 1310720 bytes."""
    assert told == size(count)


def test_a_client_id_cannot_be_a_command() -> None:
    """The suggested command would execute shell syntax from a client id."""
    held = {**HELD, "reason": "quota_session_messages", "limit": "3:30"}
    evil = said(facts(client="x; rm -rf $HOME", held=held))

    assert "`weir limit set 'x; rm -rf $HOME' --rate" in evil


def test_publishers_that_wait_for_a_log_are_told_which_and_why() -> None:
    """They would be told that sessions are being read."""
    log = {"resource": "weir/1 log", "why": "nothing can be appended to parts of the log (t/0: it has no leader)"}
    told = " ".join(explain(facts(unacknowledged=3, logged=1, logs=[log])))

    assert "it has published for APPLICATION clients, whose logs take long or cannot be used now." in told
    assert f"The log of worker 1 of node weir is in trouble: {log['why']}." in told
    assert "read from Redis" not in told


@pytest.mark.parametrize(
    ("waits", "trouble"), [("", ""), ("it is not connected", ""), ("", "the topic does not exist (t)")]
)
def test_the_logs_that_an_application_client_shares_are_told(waits: str, trouble: str) -> None:
    """Nobody would know why a member of a group gets nothing, while others do all the work."""
    shared = {"name": "g", "filter": "t/#", "topic": "weir.msg.app.shared.t.mlw", "partitions": 12, "reads": [1, 7]}
    shared |= {"waits": waits, "trouble": trouble}
    log = {"topic": "weir.msg.app.phone", "trouble": "", "parting": False, "shared": [shared]}
    told = " ".join(explain(facts(log=log)))

    assert "Of $share/g/t/# it reads 2 of 12 partitions of weir.msg.app.shared.t.mlw" in told
    assert (f": {waits}, so other members have them." in told) == bool(waits)
    assert (f"; that log cannot be used now: {trouble}." in told) == bool(trouble)


@pytest.mark.parametrize("trouble", ["", "the topic does not exist (t)"])
def test_the_log_of_an_application_client_is_told(trouble: str) -> None:
    """Nobody would know why the client gets nothing, or where its messages wait."""
    told = explain(facts(log={"topic": "weir.msg.app.phone", "trouble": trouble, "parting": False, "shared": []}))

    assert f"It is an APPLICATION client: its messages wait in the log weir.msg.app.phone.{trouble and ' That'}" in (
        " ".join(told)
    )
    assert trouble in " ".join(told)


def test_a_client_that_is_to_have_no_log_any_more_is_told_of() -> None:
    """Who has changed the rules would not know why the client has its log still."""
    told = explain(facts(log={"topic": "weir.msg.app.phone", "trouble": "", "parting": True, "shared": []}))

    assert "It will be a DEVICE, as its last CONNECT says, once it has been sent all" in " ".join(told)


BEHIND: Final[dict[str, Any]] = {"lag": 12.0, "behind": 30, "trouble": ""}


def test_who_publishes_into_the_backbone_is_told_what_it_waits_for() -> None:
    """Whoever waits for a PUBACK would be told of receivers, which have nothing to do with it."""
    told = said(facts(unacknowledged=2, logged=1, backbone={**BEHIND, "lag": 0.0}))

    assert (
        "2 publishes of it have no acknowledgement yet: the inbound backbone has to store what it publishes first. "
        "Nothing further is read from it until then, as the part of the inbound backbone that has its publishes takes "
        "long or cannot be used now."
    ) in told
    assert "Receivers get" not in told


def test_a_backbone_that_is_behind_is_told() -> None:
    """Nobody would know why messages come late although they are acknowledged at once."""
    assert (
        "Receivers get what is published later: in the inbound backbone the oldest publish has waited for 12 s, "
        "and 30 records are not done."
    ) in said(facts(backbone=BEHIND))


def test_who_waits_for_the_backbone_is_told_why_it_takes_nothing() -> None:
    """A client that waits for Kafka would be told of another worker that is busy."""
    gate = {"resource": "weir/0 backbone", "publishes": 0, "bytes": 0, "delay": 0.0, "refuses": True, "trouble": "no"}
    told = said(facts(held={**HELD, "reason": "gate", "gate": gate}))

    assert "The part of the inbound backbone that has its publishes takes none now. It is in trouble: no." in told
    assert "busy with other work" not in told


def test_a_level_that_the_backbone_raises_is_told() -> None:
    """The signal and its target would have no meaning."""
    level = {**OVERLOADED, "level": 3.0, "cause": "backbone", "value": 1.5, "target": 10.0}
    told = said(facts(level=level))

    assert "publishes wait too long in the inbound backbone, 15 s, which is 1.5 times the target" in told
    assert "(overload.backbone_lag)" in told
    assert "dispatching from the inbound backbone of node weir" == place(backbone_lag_of("weir"))


@pytest.mark.parametrize(("value", "nodes"), [(2.0, "1 node"), (6.0, "3 nodes")])
def test_a_level_that_a_change_of_the_cluster_raises_is_told(value: float, nodes: str) -> None:
    """An operator would look for load that is not there."""
    level = {**OVERLOADED, "level": 1.0, "cause": "topology", "value": value, "target": 0.5}
    told = said(facts(level=level))

    assert f"nodes have joined or left the cluster, {nodes} a short time ago (overload.topology)." in told


def test_the_facts_of_a_node_have_the_worst_of_its_backbone() -> None:
    """The worker of a client may dispatch nothing itself."""
    found = together([facts(backbone={**BEHIND, "lag": 0.0}), away(backbone=BEHIND)], [])

    assert found is not None and {**BEHIND, "behind": 60} == found["backbone"]
