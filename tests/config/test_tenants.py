import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config.tenants import RIGHT, TenantRule


@pytest.mark.parametrize(
    ("rule", "client_id", "user", "tenant"),
    [
        ("user", "c", "acme", "acme"),
        ("user", "c", None, ""),
        ("user-suffix:@", "c", "jo@acme", "acme"),
        ("user-suffix:@", "c", "jo@home@acme", "acme"),
        ("user-suffix:@", "c", "jo", ""),
        ("user-prefix:/", "c", "acme/jo/x", "acme"),
        ("user-prefix:/", "c", None, ""),
        ("client-prefix:/", "acme/7", "jo", "acme"),
        ("client-prefix:::", "acme::7", "jo", "acme"),
        ("client-prefix:/", "acme", "jo", ""),
        ("client-suffix:-", "7-x-acme", None, "acme"),
        ("client-suffix:-", "acme", None, ""),
    ],
)
def test_the_rule_reads_the_tenant_of_a_client(rule: str, client_id: str, user: str | None, tenant: str) -> None:
    """Clients would use up the quota of others, or have one of their own each by leaving the tenant's name out."""
    assert tenant == TenantRule(rule).tenant(client_id, user)


@pytest.mark.parametrize(
    "text", ["", "users", "user:", "user:@", "client", "client-prefix", "client-prefix:", "user-infix:@", "-prefix:/"]
)
def test_what_is_no_rule_is_refused(text: str) -> None:
    """A misspelt rule would put everybody into one tenant."""
    with pytest.raises(ValueError) as refused:
        TenantRule(text)

    assert RIGHT == str(refused.value)


@given(st.text(min_size=1), st.text(), st.none() | st.text())
def test_every_client_has_a_tenant(mark: str, client_id: str, user: str | None) -> None:
    """A strange name would close its connection with an error of ours."""
    for kind in ("user-prefix", "user-suffix", "client-prefix", "client-suffix"):
        tenant = TenantRule(f"{kind}:{mark}").tenant(client_id, user)
        assert mark not in tenant
