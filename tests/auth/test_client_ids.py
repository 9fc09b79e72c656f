# Which client ids a rule allows to a user.
import pytest

from broker.auth.client_ids import ClientIds
from broker.config.client_ids import ClientIdRule
from broker.config.contradictions import contradictions
from broker.config.schema import Access, Config

RULES = [
    ("%u", "bob", ["bob"], ["bo", "bob1", "alice", ""]),
    ("%u-*", "bob", ["bob-", "bob-1", "bob-a-b"], ["bob", "bobby-1", "alice-1", ""]),
    ("dev/%u", "bob", ["dev/bob"], ["bob", "dev/bobby", "dev/"]),
    ("dev/%u/*", "bob", ["dev/bob/1"], ["dev/bobby/1", "bob/1"]),
]


@pytest.mark.parametrize(("rule", "user", "allowed", "refused"), RULES)
def test_a_rule_allows_the_ids_of_its_form(rule: str, user: str, allowed: list[str], refused: list[str]) -> None:
    """A user would have the ids of others, or not its own."""
    ids = ClientIds(rule, exclusive=True)

    assert [] == [one for one in allowed if not ids.allows(one, user)]
    assert [] == [one for one in refused if ids.allows(one, user)]
    assert not ids.allows(allowed[0], None)
    assert ids.allows(ids.assigned(user, "random"), user)


@pytest.mark.parametrize("text", ["%u*", "user", "%u-%u", "*%u", "%u-*x", "*"])
def test_a_text_that_is_no_rule_is_an_error(text: str) -> None:
    """ "%u*" would let the user "ann" have the ids of "anna"."""
    with pytest.raises(ValueError, match="such as"):
        ClientIdRule(text)


@pytest.mark.parametrize(
    ("access", "wrong"),
    [
        (Access(client_id_rule="%u", password_file="users"), False),
        (Access(client_id_rule="%u", certificate_user=True), False),
        (Access(client_id_rule="%u"), True),
        (Access(client_id_rule="%u", password_file="users", allow_anonymous=True), True),
    ],
)
def test_a_rule_needs_users(access: Access, wrong: bool) -> None:
    """A broker would start at which no client, or no anonymous client, could ever connect."""
    assert wrong == ("access.client_id_rule" in [key for key, _ in contradictions(Config(access=access))])
