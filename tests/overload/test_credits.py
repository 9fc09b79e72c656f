from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config.schema import Overload
from broker.overload.credits import REST, TICK, UNKNOWN, Account, Accounts, CreditOwners, Ledger, refills

SETTINGS = Overload()
LEVELS = st.floats(0.0, 10.0)
COSTS = st.integers(1, 200_000)


def ledger_at(level: float, now: float = 0.0) -> Ledger:
    ledger = Ledger(SETTINGS, now)
    ledger.change(level, now)
    return ledger


def test_the_table_is_exact_at_whole_levels_and_even_between() -> None:
    """A client would be granted other than the configuration says."""
    rows = refills(SETTINGS.refill)

    assert 101 == len(rows)
    assert list(SETTINGS.refill) == [rows[10 * level] for level in range(11)]
    assert all(earlier >= later for earlier, later in pairwise(rows))
    assert 50_000 * 0.5**0.5 == pytest.approx(rows[5], abs=0.001)


@pytest.mark.parametrize(("level", "cap"), [(0.0, 50_000), (0.1, 50_000), (5.0, 7500), (7.0, 1750), (10.0, 1000)])
def test_what_may_be_saved_falls_with_the_level(level: float, cap: float) -> None:
    """A fleet that had saved up would flood us in the middle of an overload."""
    assert cap == ledger_at(level).cap


def test_a_balance_grows_by_a_refill_each_200_ms_up_to_the_cap() -> None:
    """Clients would be slowed down more, or less, than the level says."""
    ledger = ledger_at(5.0)
    account = Accounts(SETTINGS, ledger).arrive("one", 0.0)

    assert 1500 == account.balance(ledger, 0.0)
    assert pytest.approx(3000) == account.balance(ledger, 0.2)
    assert 7500 == account.balance(ledger, 100.0)
    ledger.change(10.0, 100.0)
    assert 1000 == account.balance(ledger, 100.0)


@given(st.lists(st.tuples(st.floats(0.0, 5.0), LEVELS, COSTS, st.integers(0, 100_000), st.booleans()), max_size=40))
def test_credits_stay_between_one_publish_of_debt_and_the_cap(
    steps: list[tuple[float, float, int, int, bool]],
) -> None:
    """A client could save without limit, or owe so much that it is never served again."""
    ledger = Ledger(SETTINGS, 0.0)
    account = Accounts(SETTINGS, ledger).arrive("one", 0.0)
    now, dearest = 0.0, 0
    for wait, level, cost, spent, idle in steps:
        now += wait
        if not ledger.enforcing:
            account.spent += spent
        ledger.change(level, now)
        if ledger.enforcing and account.passes(ledger, cost, now):
            account.charge(ledger, cost, now)
            dearest = max(dearest, cost)
        elif ledger.enforcing and idle:
            account.charge_idle(ledger, cost, now)
        assert -dearest - 0.001 <= account.balance(ledger, now) <= ledger.cap


@given(st.floats(0.01, 10.0), COSTS, st.lists(COSTS, max_size=5))
def test_a_publish_of_any_cost_passes_when_it_was_promised(level: float, cost: int, before: list[int]) -> None:
    """A publish dearer than what can be saved would wait for ever, or be woken in vain again and again."""
    ledger = ledger_at(level)
    account = Accounts(SETTINGS, ledger).arrive("one", 0.0)
    now = 0.0
    for dear in before:
        now = account.when(ledger, dear, now)
        account.charge(ledger, dear, now)

    when = account.when(ledger, cost, now)

    assert account.passes(ledger, cost, when)
    assert when in (now, now + REST) or not account.passes(ledger, cost, when - 0.002)


def test_who_waits_comes_back_for_several_publishes() -> None:
    """A client that asks for more than it gets would be woken for each publish, and each would be a turn of its own."""
    ledger = ledger_at(3.0)
    account = Account("one", 0.0)

    when = account.when(ledger, 30, 0.0)

    assert REST == when
    passed = 0
    while account.passes(ledger, 30, when):
        account.charge(ledger, 30, when)
        passed += 1
    assert passed == pytest.approx(6000 * REST / TICK / 30, abs=1)


def test_level_0_counts_what_is_spent_and_takes_it_in_later() -> None:
    """Those who were heavy would be as rich as those who were not when the overload begins."""
    ledger = ledger_at(0.0)
    accounts = Accounts(SETTINGS, ledger)
    heavy, modest = accounts.arrive("heavy", 0.0), accounts.arrive("modest", 0.0)
    heavy.spent += 10_000_000
    modest.spent += 1000

    ledger.change(1.0, 1.0)

    assert 0.0 == heavy.balance(ledger, 1.0)
    assert 50_000 == modest.balance(ledger, 1.0)
    assert heavy.when(ledger, 40, 1.0) > 1.0 == modest.when(ledger, 40, 1.0)


def test_who_is_let_on_by_idle_room_pays_with_what_there_is() -> None:
    """A dear publish that harmed nobody would keep its client out for minutes."""
    ledger = ledger_at(10.0)
    account = Accounts(SETTINGS, ledger).arrive("one", 0.0)

    account.charge_idle(ledger, 5, 0.0)
    some = account.balance(ledger, 0.0)
    account.charge_idle(ledger, 5000, 0.0)
    none = account.balance(ledger, 0.0)

    assert (15.0, 0.0) == (some, none)


def test_a_newcomer_starts_with_one_refill_and_one_who_returns_with_its_debt() -> None:
    """Whoever has used up its credits would connect anew to get fresh ones."""
    ledger = ledger_at(8.0)
    accounts = Accounts(SETTINGS, ledger)
    account = accounts.arrive("one", 0.0)
    assert 150 == account.balance(ledger, 0.0)
    account.charge(ledger, 150, 0.0)

    accounts.leave(account)

    assert 0 == accounts.arrive("one", 0.0).balance(ledger, 0.0)


@given(LEVELS, LEVELS, st.lists(st.tuples(COSTS, st.floats(0.0, 2.0)), max_size=10))
def test_who_goes_to_and_fro_between_workers_has_no_more_than_who_stays(
    here: float, there: float, publishes: list[tuple[int, float]]
) -> None:
    """With an account at each worker a client would have the credits of several."""
    ledgers = [ledger_at(here), ledger_at(there)]
    accounts = [Accounts(SETTINGS, ledger) for ledger in ledgers]
    highest = ledger_at(min(here, there))
    staying = Accounts(SETTINGS, highest).arrive("one", 0.0)
    at, now = 0, 0.0
    account = accounts[at].arrive("one", now)
    for cost, pause in publishes:
        now += pause
        if account.passes(ledgers[at], cost, now):
            account.charge(ledgers[at], cost, now)
            staying.charge(highest, cost, now)
        accounts[at].leave(account)
        balance = accounts[at].balance_of("one", now)
        at = 1 - at
        accounts[at].bring("one", balance, now)
        account = accounts[at].arrive("one", now)
        assert account.balance(ledgers[at], now) <= staying.balance(highest, now) + 0.01


def test_what_is_brought_takes_no_place_of_its_own_and_nobodys_who_is_here() -> None:
    """Workers that hand over sessions would use up the memory; or a late answer take the credits of who is here."""
    ledger = ledger_at(8.0)
    accounts = Accounts(Overload(accounts=2), ledger)
    for name in ("a", "b", "a", "c"):
        accounts.bring(name, 10.0, 0.0)
    here = accounts.arrive("here", 0.0)
    accounts.bring("here", -500.0, 0.0)
    accounts.bring("unknown", UNKNOWN, 0.0)

    assert (1, 2) == (accounts.forgotten, accounts.statistics(0.0)[3])
    assert [10.0, UNKNOWN, 10.0] == [accounts.balance_of(name, 0.0) for name in ("a", "b", "c")]
    assert 150 == here.balance(ledger, 0.0)
    assert UNKNOWN == accounts.balance_of("unknown", 0.0)


@pytest.mark.parametrize(
    ("credits_per", "rule", "others"),
    [
        ("client", "user", []),
        ("user", "", [("b-1", "alice")]),
        ("tenant", "client-prefix:-", [("a-2", "bob"), ("a-3", None)]),
        ("tenant", "user", [("b-1", "alice")]),
    ],
)
def test_credits_belong_to_whom_the_setting_names(
    credits_per: str, rule: str, others: list[tuple[str, str | None]]
) -> None:
    """A user with a hundred client ids would have a hundred times the credits, or strangers share theirs."""
    owners = CreditOwners(credits_per, rule)
    clients = [("b-1", "alice"), ("a-2", "bob"), ("a-3", None), ("alice", None), ("shared alice", None)]
    mine = owners.owner("a-1", "alice")

    assert others == [one for one in clients if owners.owner(*one) == mine]
    assert mine == owners.owner("a-1", "alice")
    assert owners.shared == (credits_per != "client")


def test_shared_credits_stay_where_they_are() -> None:
    """A client that moves would take what others left, or bring a second share for all of them."""
    ledger = ledger_at(8.0)
    accounts = Accounts(SETTINGS, ledger, moving=False)
    account = accounts.arrive("shared alice", 0.0)
    account.charge(ledger, 150, 0.0)
    accounts.leave(account)
    accounts.bring("shared alice", 500.0, 0.0)

    assert UNKNOWN == accounts.balance_of("shared alice", 0.0)
    assert 0 == accounts.arrive("shared alice", 0.0).balance(ledger, 0.0)


def test_those_who_left_are_remembered_in_a_bounded_number_the_latest_ones() -> None:
    """Clients with ever new ids would use up the memory."""
    ledger = ledger_at(8.0)
    accounts = Accounts(Overload(accounts=2), ledger)
    for name in ("a", "b", "c"):
        account = accounts.arrive(name, 0.0)
        account.charge(ledger, 150, 0.0)
        accounts.leave(account)

    assert (1, 2) == (accounts.forgotten, accounts.statistics(0.0)[3])
    assert [150, 0, 0] == [accounts.arrive(name, 0.0).balance(ledger, 0.0) for name in ("a", "b", "c")]


def test_a_client_that_is_here_twice_keeps_its_account_until_both_are_gone() -> None:
    """A takeover would lose the account of who took over."""
    accounts = Accounts(SETTINGS, ledger_at(1.0))
    first = accounts.arrive("one", 0.0)

    assert first is accounts.arrive("one", 0.0)
    accounts.leave(first)
    assert (1, 0) == accounts.statistics(0.0)[::3]
    accounts.leave(first)
    assert (0, 1) == accounts.statistics(0.0)[::3]


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0.0, 0.5), LEVELS, st.integers(1, 3000)), max_size=60))
def test_those_below_the_cap_are_counted_without_looking_at_each(steps: list[tuple[int, float, float, int]]) -> None:
    """The metrics that HiveMQ names would be wrong, or cost a loop over all clients."""
    ledger = ledger_at(5.0)
    accounts = Accounts(SETTINGS, ledger)
    clients = [accounts.arrive(str(number), 0.0) for number in range(10)]
    now = 0.0
    for number, wait, level, cost in steps:
        now += wait
        ledger.change(max(0.1, level), now)
        if clients[number].passes(ledger, cost, now):
            clients[number].charge(ledger, cost, now)

    here, using, average, _ = accounts.statistics(now)

    width = SETTINGS.cap / 1024
    balances = [client.balance(ledger, now) for client in clients]
    assert 10 == here
    assert sum(balance < ledger.cap - width for balance in balances) <= using
    almost = [ledger.granted(now) - client.zero < ledger.cap + width for client in clients]
    assert using <= sum(almost)
    assert sum(balances) / 10 == pytest.approx(average, abs=width)


def test_counting_takes_a_bounded_number_of_buckets() -> None:
    """The counts themselves would grow with the time that a level lasts."""
    ledger = ledger_at(0.1)
    accounts = Accounts(SETTINGS, ledger)
    for second in range(5000):
        account = accounts.arrive(str(second), float(second))
        account.charge(ledger, 1, float(second))
        ledger.change(0.1, float(second))

    assert len(ledger._counts) <= 2 * 1024
