import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config.rate import parse, slowest
from broker.config.schema import ClusterQuota, QuotaScope
from broker.config.schema import Quotas as Settings
from broker.overload.admit import DROP, PAUSE, REFUSE, Publish
from broker.overload.quotas.bounded_registry import BoundedRegistry
from broker.overload.quotas.lease import Leases
from broker.overload.quotas.overrides import Limit
from broker.overload.quotas.quota import Quota, QuotaExceeded
from broker.overload.quotas.quotas import Quotas
from broker.reasons import DropReason, FilterRefusal, PauseReason, PublishRefusal

NOW = 1000.0
PACKET_BYTES = 1000
V31, V311, V5 = 3, 4, 5


def quotas(
    session: dict[str, Any] | None = None,
    tenant: dict[str, Any] | None = None,
    cluster: dict[str, Any] | None = None,
    reserve: float = 0.0,
    tenant_of: str = "user",
) -> Quotas:
    settings = Settings(
        tenant_of=tenant_of,
        reserve=reserve,
        session=QuotaScope(**(session or {})),
        tenant=QuotaScope(**(tenant or {})),
        cluster=ClusterQuota(**(cluster or {})),
    )
    return Quotas(settings, PACKET_BYTES, None, NOW)


def limited(scope: str, limits: dict[str, Any]) -> Quotas:
    """Quotas of the session, tenant or cluster alone."""
    session, tenant, cluster = (limits if one == scope else {} for one in ("session", "tenant", "cluster"))
    return quotas(session, tenant, cluster)


def arrived(all_quotas: Quotas, client_id: str = "c", user: str | None = "acme", limit: Limit | None = None) -> Quota:
    quota = all_quotas.arrive(client_id, user, limit, NOW)
    assert quota is not None
    return quota


def passed(quota: Quota, count: int, qos: int = 1, size: int = 10, now: float = NOW) -> int:
    """How many of *count* messages pass, one after the other."""
    passed = 0
    for _ in range(count):
        if quota.over(qos, V5, 1, size, now) is None:
            quota.take(qos, 1, size, now)
            passed += 1
    return passed


def stopped(quota: Quota, qos: int = 1, version: int = V5, size: int = 10, now: float = NOW) -> QuotaExceeded:
    over = quota.over(qos, version, 1, size, now)
    assert over is not None
    return over


def test_where_nothing_is_configured_there_is_no_quota() -> None:
    """Each publish would pay for limits that nobody has set."""
    assert quotas().arrive("c", "acme", None, NOW) is None
    quotas().leave("c")


@pytest.mark.parametrize(
    ("qos", "version", "kind", "reasons"),
    [
        (0, V31, DROP, DropReason),
        (0, V311, DROP, DropReason),
        (0, V5, DROP, DropReason),
        (1, V31, PAUSE, PauseReason),
        (1, V311, PAUSE, PauseReason),
        (1, V5, REFUSE, PublishRefusal),
        (2, V31, PAUSE, PauseReason),
        (2, V311, PAUSE, PauseReason),
        (2, V5, REFUSE, PublishRefusal),
    ],
)
def test_over_quota_each_qos_and_version_gets_its_own(
    qos: int, version: int, kind: int, reasons: type[DropReason] | type[PauseReason] | type[PublishRefusal]
) -> None:
    """A client that can be told would wait, one that cannot would be told, or lose what was promised."""
    quota = arrived(quotas({"incoming_messages": "10:1"}))
    assert 10 == passed(quota, 20)

    over = quota.test(Publish(version, qos, 10, 1, 0), NOW)

    assert over is not None
    assert (kind, reasons.QUOTA_SESSION_MESSAGES) == (over.kind, over.reason)
    assert NOW + 0.1 == pytest.approx(over.until)


@pytest.mark.parametrize(
    ("scope", "key", "rate", "name"),
    [
        ("session", "incoming_messages", "5:1", "QUOTA_SESSION_MESSAGES"),
        ("session", "incoming_bytes", "1000:10", "QUOTA_SESSION_BYTES"),
        ("tenant", "incoming_messages", "5:1", "QUOTA_TENANT_MESSAGES"),
        ("tenant", "incoming_bytes", "1000:10", "QUOTA_TENANT_BYTES"),
        ("cluster", "incoming_messages", "5:1", "QUOTA_CLUSTER_MESSAGES"),
        ("cluster", "incoming_bytes", "1000:10", "QUOTA_CLUSTER_BYTES"),
        ("cluster", "total_messages", "5:1", "QUOTA_CLUSTER_TOTAL"),
    ],
)
def test_each_limit_of_what_is_published_holds_and_has_its_name(scope: str, key: str, rate: str, name: str) -> None:
    """A limit would do nothing, or `weir why` name another one."""
    quota = arrived(limited(scope, {key: rate}))
    assert 5 == passed(quota, 20, size=200)

    assert name == getattr(stopped(quota, 0).reason, "name", "")
    assert name == getattr(stopped(quota, 1, V311).reason, "name", "")
    refused = stopped(quota, 2)
    assert PublishRefusal[name] is refused.reason
    assert f"{PublishRefusal[name].words} ({rate})" == refused.words()
    assert quota.over_outgoing(NOW) is None or name == "QUOTA_CLUSTER_TOTAL"
    assert quota.over_filters(100, NOW) is None


@pytest.mark.parametrize(
    ("scope", "key", "rate", "name"),
    [
        ("session", "outgoing_messages", "5:1", "QUOTA_SESSION_OUTGOING"),
        ("session", "outgoing_bytes", "1000:1", "QUOTA_SESSION_OUTGOING"),
        ("tenant", "outgoing_messages", "5:1", "QUOTA_TENANT_OUTGOING"),
        ("tenant", "outgoing_bytes", "1000:1", "QUOTA_TENANT_OUTGOING"),
        ("cluster", "outgoing_messages", "5:1", "QUOTA_CLUSTER_OUTGOING"),
        ("cluster", "outgoing_bytes", "1000:1", "QUOTA_CLUSTER_OUTGOING"),
        ("cluster", "total_messages", "5:1", "QUOTA_CLUSTER_TOTAL"),
    ],
)
def test_an_outgoing_batch_is_finished_and_then_it_holds(scope: str, key: str, rate: str, name: str) -> None:
    """A message that others have got already would be cut off; or what is owed never be paid."""
    quota = arrived(limited(scope, {key: rate}))
    quota.take_outgoing(4, 800, NOW)
    assert quota.over_outgoing(NOW) is None
    quota.take_outgoing(11, 2200, NOW)  # ten messages, or 2000 bytes, more than there are

    over = quota.over_outgoing(NOW)
    assert over is not None
    assert (PAUSE, PauseReason[name], DropReason[name]) == (over.kind, over.reason, over.drop_reason())
    assert quota.over_outgoing(NOW + 1.99) is not None
    assert quota.over_outgoing(NOW + 2.21) is None  # all is paid, and there is room for one message
    if key != "total_messages":
        assert 50 == passed(quota, 50)


@pytest.mark.parametrize("scope", ["session", "tenant", "cluster"])
def test_subscriptions_have_a_quota(scope: str) -> None:
    """A client that subscribes in a loop would have the workers tell each other all day."""
    quota = arrived(limited(scope, {"subscriptions": "10:1"}))
    assert quota.over_filters(6, NOW) is None
    quota.take_filters(6, NOW)

    over = quota.over_filters(6, NOW)
    assert over is not None
    name = f"QUOTA_{scope.upper()}_SUBSCRIPTIONS"
    assert (PAUSE, PauseReason[name], FilterRefusal[name]) == (over.kind, over.reason, over.filter_refusal())
    assert f"{PauseReason[name].words} (10:1)" == over.words()
    assert NOW + 0.2 == pytest.approx(over.until)
    assert quota.over_filters(4, NOW) is None
    assert 50 == passed(quota, 50)


def test_a_subscribe_of_more_filters_than_the_quota_has_passes_in_the_end() -> None:
    """A 3.x client would wait for ever, as it cannot be told."""
    quota = arrived(quotas({"subscriptions": "10:1"}))
    quota.take_filters(1, NOW)
    assert quota.over_filters(25, NOW) is not None
    assert quota.over_filters(25, NOW + 0.2) is None
    quota.take_filters(25, NOW + 0.2)

    assert quota.over_filters(1, NOW + 1.79) is not None  # 15 are owed
    assert quota.over_filters(1, NOW + 1.81) is None


def test_the_total_counts_both_directions() -> None:
    """TBMQ's total limit is on what comes and goes."""
    quota = arrived(quotas(cluster={"total_messages": "10:1"}))
    quota.take_outgoing(7, 70, NOW)

    assert 3 == passed(quota, 10)


def test_what_one_limit_stops_costs_the_others_nothing() -> None:
    """A client that is stopped by its tenant's quota would lose its own by trying."""
    all_quotas = quotas({"incoming_messages": "10:1"}, {"incoming_messages": "3:1"}, {"incoming_messages": "100:1"})
    one = arrived(all_quotas, "one")
    other = arrived(all_quotas, "other", "else")
    assert 3 == passed(one, 50)

    assert PublishRefusal.QUOTA_TENANT_MESSAGES is stopped(one).reason
    assert 3 == passed(other, 50)
    assert 3 == passed(one, 50, now=NOW + 1)
    assert 3 == passed(one, 50, now=NOW + 2)


LIMITS = st.fixed_dictionaries(
    {}, optional={"incoming_messages": st.sampled_from(["3:1", "20:10"]), "incoming_bytes": st.just("1000:2")}
)


@given(LIMITS, LIMITS, LIMITS, st.lists(st.tuples(st.integers(1, 5), st.integers(1, 400), st.integers(0, 2))))
def test_all_limits_are_charged_or_none(
    session: dict[str, str], tenant: dict[str, str], cluster: dict[str, str], wishes: list[tuple[int, int, int]]
) -> None:
    """Quotas would drift apart from what has passed."""
    quota = quotas(session, tenant, cluster, reserve=0.5).arrive("c", "acme", None, NOW)
    if quota is None:
        assert not (session or tenant or cluster)
        return
    scopes = (session, tenant, cluster)
    counts = [int(scope["incoming_messages"].split(":")[0]) for scope in scopes if "incoming_messages" in scope]
    count_left = float(min(counts, default=1 << 30))
    bytes_left = 1000.0 if any("incoming_bytes" in limit for limit in scopes) else 1e9
    for count, size, qos in wishes:
        fits = count <= count_left and size <= bytes_left
        over = quota.over(qos, V5, count, size, NOW)
        assert over is not None if not fits else (qos == 0 or over is None)
        if over is None:
            quota.take(qos, count, size, NOW)
            count_left -= count
            bytes_left -= size


def test_a_run_is_cut_where_the_quota_ends() -> None:
    """Of many QoS 0 messages that came together none would pass, as all are too many."""
    quota = arrived(quotas({"incoming_messages": "100:1", "incoming_bytes": "3000:1"}))

    assert 100 == quota.fitting(500, 10, NOW)
    assert 30 == quota.fitting(500, 100, NOW)
    assert 7 == quota.fitting(7, 100, NOW)
    quota.take(0, 30, 3000, NOW)
    assert 0 == quota.fitting(500, 100, NOW)
    assert DropReason.QUOTA_SESSION_BYTES is stopped(quota, 0).reason


def test_within_the_quota_of_its_session_qos_0_passes() -> None:
    """A client that publishes at QoS 0 would lose half of each burst that its quota allows."""
    assert 10 == arrived(quotas({"incoming_messages": "10:1"}, reserve=0.5)).fitting(50, 10, NOW)
    assert 10 == passed(arrived(quotas({"incoming_bytes": "100000:1"}, reserve=0.5)), 50, qos=0, size=10_000)
    limit = Limit("c", "10:1", False, NOW + 60, seconds=60, by="test", reason="test", made=0.0)
    assert 10 == passed(arrived(quotas({}, reserve=0.5), limit=limit), 50, qos=0)


@pytest.mark.parametrize("scope", ["tenant", "cluster"])
def test_qos_0_leaves_what_is_kept_of_a_shared_quota(scope: str) -> None:
    """The QoS 0 messages of one client would use up what the QoS 1 and 2 messages of another were promised."""
    limits = {"incoming_messages": "10:1"}
    tenant, cluster = (limits if one == scope else {} for one in ("tenant", "cluster"))
    quota = arrived(quotas({}, tenant, cluster, reserve=0.5))
    assert 5 == quota.fitting(50, 10, NOW)
    assert 5 == passed(quota, 50, qos=0)
    assert 5 == passed(quota, 50, qos=2)
    assert 0 == quota.fitting(50, 10, NOW)


def test_when_to_try_again_is_told_in_milliseconds() -> None:
    """Clients would come back too early, again and again."""
    quota = arrived(quotas({"incoming_messages": "10:1"}))
    passed(quota, 10)
    over = stopped(quota)

    assert 101 == over.retry_after(NOW)
    assert 1 == over.retry_after(NOW + 60)
    assert quota.over(1, V5, 1, 10, NOW + 0.101) is None


def test_while_redis_is_being_asked_everybody_waits() -> None:
    """QoS 0 would be dropped, and 5.0 refused, while most of the quota is not used."""
    settings = Settings(cluster=ClusterQuota(incoming_messages="100:1"))
    leases = Leases()
    quota = arrived(Quotas(settings, PACKET_BYTES, leases, NOW))

    for qos, version in itertools.product((0, 1, 2), (V31, V311, V5)):
        over = stopped(quota, qos, version)
        assert (PAUSE, PauseReason.QUOTA_ASKED) == (over.kind, over.reason)
        assert NOW < over.until <= NOW + 0.01
    (ask,) = leases.due(NOW)
    assert b"cluster:incoming_messages:" == ask.lease.name


def test_what_is_sent_while_redis_is_being_asked_is_owed_up_to_a_slice() -> None:
    """QoS 0 cannot wait for the answer: each first message would be dropped; or any number pass before it comes."""
    settings = Settings(cluster=ClusterQuota(outgoing_messages="100:1"))
    leases = Leases()
    quota = arrived(Quotas(settings, PACKET_BYTES, leases, NOW))
    sent = 0
    while (over := quota.over_outgoing(NOW)) is None:
        quota.take_outgoing(1, 10, NOW)
        sent += 1
    (ask,) = leases.due(NOW)

    assert (10, PauseReason.QUOTA_ASKED) == (sent, over.reason)  # what the rate gives in 100 ms
    assert DropReason.QUOTA_CLUSTER_OUTGOING is over.drop_reason()
    assert 20_000 == ask.firm + ask.loose  # what is owed, and a slice to go on with
    ask.lease.answered(ask, 15_000, 0, NOW)  # there is no more
    for _ in range(5):
        assert quota.over_outgoing(NOW) is None
        quota.take_outgoing(1, 10, NOW)
    over = quota.over_outgoing(NOW)
    assert over is not None and PauseReason.QUOTA_CLUSTER_OUTGOING is over.reason


def test_clients_of_a_tenant_share_and_others_do_not() -> None:
    """One tenant would use up what belongs to another; or each of its clients have all of it."""
    all_quotas = quotas(tenant={"incoming_messages": "10:1"})
    one, two = arrived(all_quotas, "1", "acme"), arrived(all_quotas, "2", "acme")
    other, nameless, anonymous = (
        arrived(all_quotas, name, user) for name, user in (("3", "else"), ("4", ""), ("5", None))
    )

    assert [6, 4, 10] == [passed(one, 6), passed(two, 10), passed(other, 20)]
    assert [7, 3] == [passed(nameless, 7), passed(anonymous, 20)]
    assert (5, 3) == all_quotas.statistics()


def test_names_that_differ_in_case_are_two_tenants() -> None:
    """Acme and ACME would share a quota in Redis, and nowhere else."""
    leases = Leases()
    settings = Settings(tenant_of="user", tenant=QuotaScope(incoming_messages="5:1"))
    all_quotas = Quotas(settings, PACKET_BYTES, leases, NOW)
    for name in ("Acme", "ACME"):
        stopped(arrived(all_quotas, name, name))

    assert {b"tenant:incoming_messages:Acme", b"tenant:incoming_messages:ACME"} == {
        ask.lease.name for ask in leases.due(NOW)
    }


def test_who_comes_again_has_what_it_had_left() -> None:
    """To connect anew would be a way around every quota."""
    all_quotas = quotas({"incoming_messages": "10:1"}, {"incoming_messages": "100:1"})
    assert 10 == passed(arrived(all_quotas), 20)
    all_quotas.leave("c")
    all_quotas.leave("c")

    again = arrived(all_quotas)
    assert 0 == passed(again, 20)
    assert 5 == passed(again, 20, now=NOW + 0.5001)
    assert 0 == passed(arrived(all_quotas, user="else"), 20, now=NOW + 0.5001)  # under another name, too
    assert (1, 1) == all_quotas.statistics()


def limit(rate: str, seconds: float) -> Limit:
    return Limit("c", rate, False, NOW + seconds, seconds=seconds, by="jo", reason="test", made=0.0)


@pytest.mark.parametrize("usual", ["", "10:1", "100:1"])
@pytest.mark.parametrize("rate", ["1:1", "50:1", "1000:1"])
def test_an_override_holds_from_when_it_is_set_until_it_ends(usual: str, rate: str) -> None:
    """A client that is to be slowed down would go on; or be slowed down for ever."""
    quota = arrived(quotas({"incoming_messages": usual}, cluster={"incoming_messages": "100000:1"}))
    assert passed(quota, 5) == 5
    quota.override(limit(rate, 20), NOW)
    most = int(rate.split(":")[0])
    passed(quota, 3000, now=NOW + 10)

    assert pytest.approx(most, abs=1) == passed(quota, 3000, now=NOW + 11.0001)
    usually = int(usual.split(":")[0]) if usual else 3000
    assert passed(quota, 3000, now=NOW + 19.9999) == pytest.approx(most, abs=1)
    passed(quota, 3000, now=NOW + 20)
    assert pytest.approx(usually, abs=1) == passed(quota, 3000, now=NOW + 21.0001)


def test_what_an_override_gains_beyond_its_end_counts_for_nothing() -> None:
    """A client that was quiet when its limit ended would have a burst of that limit, or wait for its own rate."""
    quota = arrived(quotas({"incoming_messages": "10:1"}))
    quota.override(limit("1000:1", 1), NOW)
    assert 10 == passed(quota, 5000)
    quota.override(limit("1000:1", 60), NOW + 50)
    assert 10 == passed(quota, 5000, now=NOW + 50)

    quota = arrived(quotas({"incoming_messages": "100:1"}))
    quota.override(limit("1:1", 1), NOW)
    assert 1 == passed(quota, 5000)
    assert 51 == passed(quota, 5000, now=NOW + 1.5001)


def test_who_waits_for_others_does_not_wait_for_the_end_of_its_limit() -> None:
    """A client would come again in vain, as its own limit is not what stops it."""
    quota = arrived(quotas(cluster={"incoming_messages": "1:3600"}), limit=limit("10:1", 5))
    assert 1 == passed(quota, 2)

    assert pytest.approx(NOW + 3600, abs=0.01) == stopped(quota).until


def test_a_limit_that_is_over_concerns_nobody() -> None:
    """A client that comes after its limit would have each of its publishes judged."""
    assert quotas().arrive("c", "acme", limit("1:1", 0), NOW) is None


def test_of_names_that_left_the_last_are_remembered() -> None:
    """Clients and tenants that never come again would use up the memory; or those who are here lose what they have."""
    known: BoundedRegistry[int] = BoundedRegistry(most=2)
    for number, name in enumerate("abcd"):
        known.keep(name, number)
        known.arrive(name)
    for name in "abc":
        known.leave(name)
    assert [None, 1, 2, 3] == [known.find(name) for name in "abcd"]
    known.arrive("b")
    known.arrive("b")
    known.leave("b")
    known.leave("d")
    known.keep("e", 4)
    known.arrive("e")
    known.leave("e")

    assert [None, 1, None, 3, 4] == [known.find(name) for name in "abcde"]
    assert (1, 2) == known.statistics()


CHANGES = st.lists(
    st.tuples(st.floats(0, 3), st.sampled_from(["nothing", "limit", "drop"]), st.floats(0.1, 5), st.integers(0, 120)),
    max_size=25,
)


@given(st.sampled_from([(3, 1), (10, 1), (90, 30)]), st.sampled_from([(2, 1), (40, 1), (100, 60)]), CHANGES)
def test_an_override_never_loosens_more_than_it_says(
    usual: tuple[int, int], other: tuple[int, int], changes: list[tuple[float, str, float, int]]
) -> None:
    """Setting and dropping limits, or their ends, would each be a burst."""
    quota = arrived(quotas({"incoming_messages": "{}:{}".format(*usual)}))
    now, end = NOW, NOW  # of the limit
    allowed = float(usual[0])  # once, and then the rate that is in force
    spent = 0
    for pause, change, seconds, wishes in changes:
        limited = min(pause, max(0.0, end - now))
        allowed += limited * other[0] / other[1] + (pause - limited) * usual[0] / usual[1]
        now += pause
        if change == "limit":
            end = now + seconds
            quota.override(limit("{}:{}".format(*other), end - NOW), now)
        elif change == "drop":
            end = now
            quota.override(None, now)
        spent += passed(quota, wishes, now=now)
        assert spent <= allowed + 1e-6


@given(st.sampled_from(["3:1", "90:30"]), st.sampled_from(["2:1", "100:60"]), CHANGES, st.booleans())
def test_an_override_never_loosens_more_than_it_says_to_who_comes_again_and_again(
    usual: str, other: str, changes: list[tuple[float, str, float, int]], told: bool
) -> None:
    """To connect anew, or that a worker is told of a change, or is not told of an end, would each be a burst."""
    all_quotas = quotas({"incoming_messages": usual})
    now = NOW
    one: Limit | None = None
    allowed = float(usual.split(":")[0])
    spent = 0
    for pause, change, seconds, wishes in changes:
        limited = 0.0 if one is None else min(pause, max(0.0, one.until - now))
        allowed += limited * slowest(parse(other)) + (pause - limited) * slowest(parse(usual))
        now += pause
        if change == "limit":
            one = limit(other, now + seconds - NOW)
        elif change == "drop" or (told and one is not None and now >= one.until):
            one = None
        if change == "nothing":
            all_quotas.leave("c")
        quota = all_quotas.arrive("c", None, one, now)
        assert quota is not None
        spent += passed(quota, wishes, now=now)
        assert spent <= allowed + 1e-6


def test_a_client_that_leaves_keeps_its_override() -> None:
    """To connect anew would end what an administrator has decided."""
    all_quotas = quotas()
    one = limit("2:1", 60)
    assert 2 == passed(arrived(all_quotas, limit=one), 10)
    all_quotas.leave("c")

    assert 0 == passed(arrived(all_quotas, limit=one), 10)
    all_quotas.leave("c")
    assert all_quotas.arrive("c", "acme", None, NOW) is None
