# Which override of the configuration a client has, and what its session may do by it.
from broker.config.overrides import ClientOverride, override_from
from broker.config.schema import Quotas as Settings
from broker.config.schema import QuotaScope
from broker.overload.admit import DROP
from broker.overload.quotas.configured import ConfiguredOverrides, Override
from broker.overload.quotas.overrides import Limit
from broker.overload.quotas.quota import Quota
from broker.overload.quotas.quotas import Quotas

NOW = 1000.0


def tables(*described: dict[str, object]) -> list[ClientOverride]:
    return [override_from(one) for one in described]


def place(overrides: ConfiguredOverrides, client_id: str, user: str | None = None) -> int | None:
    found = overrides.find(client_id, user)
    return None if found is None else found.place


def test_the_first_table_that_names_a_client_applies() -> None:
    """A gateway that is named before a pattern would have the limits of the pattern."""
    overrides = ConfiguredOverrides(QuotaScope())
    assert None is place(overrides, "dev-1", "u")
    overrides.replace(
        tables(
            {"client": "dev-1", "queue": 1},
            {"pattern": "dev-*", "queue": 2},
            {"user": "u", "queue": 3},
            {"client": "dev-2", "queue": 4},
            {"pattern": "x*", "queue": 5},
        )
    )

    assert 0 == place(overrides, "dev-1", "u")
    assert 1 == place(overrides, "dev-2", "u")
    assert 2 == place(overrides, "x", "u")
    assert 4 == place(overrides, "x", "v")
    assert 4 == place(overrides, "x")
    assert None is place(overrides, "y", "dev-1")


def quotas(session: QuotaScope, *described: dict[str, object]) -> Quotas:
    made = Quotas(Settings(session=session), 1000, None, NOW)
    made.configured.replace(tables(*described))
    return made


def arrived(all_quotas: Quotas, limit: Limit | None = None, now: float = NOW) -> Quota | None:
    override: Override | None = all_quotas.configured.find("c", None)
    return all_quotas.arrive("c", None, limit, now, override)


def passed(quota: Quota | None, count: int, now: float = NOW) -> int:
    """How many of *count* publishes of 10 bytes are within the quota."""
    assert quota is not None
    for n in range(count):
        over = quota.over(0, 4, 1, 10, now)
        if over is not None:
            assert DROP == over.kind
            return n
        quota.take(0, 1, 10, now)
    return count


def test_an_override_replaces_what_it_names_and_keeps_the_rest() -> None:
    """A client with an override of messages would have no limit of bytes any more."""
    general = QuotaScope(incoming_messages="3:3", incoming_bytes="100B:1")

    assert 3 == passed(arrived(quotas(general)), 20)
    assert 5 == passed(arrived(quotas(general, {"client": "c", "incoming_messages": "5:5"})), 20)
    assert 10 == passed(arrived(quotas(general, {"client": "c", "incoming_messages": ""})), 20)
    both: dict[str, object] = {"client": "c", "incoming_messages": "", "incoming_bytes": ""}
    assert None is arrived(quotas(general, both))
    assert 2 == passed(arrived(quotas(QuotaScope(), {"client": "c", "incoming_messages": "2:2"})), 20)


def test_a_reload_is_no_burst() -> None:
    """Each reload would give a client its whole count again; or a limit that was taken away would stay."""
    all_quotas = quotas(QuotaScope(), {"client": "c", "incoming_messages": "5:5"})
    assert 4 == passed(arrived(all_quotas), 4)
    all_quotas.configured.replace(tables({"client": "c", "incoming_messages": "50:50"}))
    assert 1 == passed(arrived(all_quotas), 20)
    all_quotas.configured.replace([])
    assert None is arrived(all_quotas)
    all_quotas.configured.replace(tables({"client": "c", "outgoing_messages": "5:5"}))
    outgoing = arrived(all_quotas)

    assert outgoing is not None
    assert ([], True) == (outgoing.incoming(NOW), outgoing.limits_outgoing())


def test_a_limit_with_an_end_supersedes_the_override_until_then() -> None:
    """An administrator could not slow down a client that has an override; or the override would be lost for it."""
    all_quotas = quotas(QuotaScope(), {"client": "c", "incoming_messages": "5:1"})
    limit = Limit("c", "2:1000", False, NOW + 10.0, seconds=10.0, by="jo", reason="test", made=0.0)
    quota = arrived(all_quotas, limit)

    assert 2 == passed(quota, 20)
    assert 0 == passed(quota, 20, NOW + 9.0)
    assert 5 == passed(quota, 20, NOW + 12.0)


def test_a_will_is_charged_to_the_quota_of_the_override() -> None:
    """A client with a quota of its own could send any number of wills by disconnecting."""
    all_quotas = quotas(QuotaScope(), {"client": "c", "incoming_messages": "1:60"})

    charged = [all_quotas.of_absent("c", None, None, NOW) for _ in range(2)]
    assert [None, "QUOTA_SESSION_MESSAGES"] == [
        None if reason is None else reason.name
        for reason in (quota.take_will(0, 10, NOW) for quota in charged if quota is not None)
    ]
