# The tables [[application.clients]]: which clients they name, and where a mistake is said to be.
import json
from pathlib import Path

import pytest

from broker.config.applications import LONGEST, MOST, ApplicationRule, rule_from
from broker.config.schema import ConfigError
from broker.config.sources import Given, described, load, restored

NOWHERE = Path("/nowhere/weir.toml")
TABLES = """
[store]
durability = "process"

[[application.clients]]
client = "analytics-*"
user = "backend"

[[application.clients]]
listener = "tls"
property = "kind=service=1"
"""


def test_tables_become_rules(tmp_path: Path) -> None:
    """A client would be of another kind than the file says; or a worker not know what the supervisor has read."""
    file = tmp_path / "weir.toml"
    file.write_text(TABLES)
    loaded = load(file, {})

    rules = (
        ApplicationRule(client="analytics-*", user="backend"),
        ApplicationRule(listener="tls", property="kind=service=1"),
    )
    assert rules == loaded.config.application.clients
    assert rules == tuple(rule_from(rule.described()) for rule in rules)
    assert rules == restored(json.loads(json.dumps(described(loaded.config)))).application.clients
    (shown,) = [one for one in loaded.describe() if one.key == "application.clients"]
    assert [rule.described() for rule in rules] == shown.value
    options = [Given("application.clients", shown.text, "--set"), Given("store.durability", "process", "--set")]
    assert rules == load(environ={}, options=options, default_file=NOWHERE).config.application.clients


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        ({"client": "a-*"}, True),
        ({"client": "a-1"}, True),
        ({"client": "a-2"}, False),
        ({"client": "*"}, True),
        ({"user": "u*"}, True),
        ({"user": "other"}, False),
        ({"listener": "tls"}, True),
        ({"listener": "tcp"}, False),
        ({"property": "kind=service"}, True),
        ({"property": "kind=other"}, False),
        ({"property": "empty="}, True),
        ({"property": "sum=1=1"}, True),
        ({"property": "missing="}, False),
        ({"client": "a-*", "user": "u", "listener": "tls", "property": "kind=service"}, True),
        ({"client": "a-*", "user": "other"}, False),
    ],
)
def test_all_parts_of_a_rule_have_to_match(rule: dict[str, str], named: bool) -> None:
    """A client would have a log that it is not to have, or none."""
    properties = [("kind", "device"), ("kind", "service"), ("empty", ""), ("sum", "1=1")]

    assert named is rule_from(rule).names("a-1", "u", "tls", properties)


def test_a_client_without_a_user_is_not_named_by_one() -> None:
    """Anybody who comes in without a password would be named."""
    assert not rule_from({"user": "*"}).names("a", None, "tcp", [])


@pytest.mark.parametrize(
    ("tables", "right"),
    [
        ("[{}]", "a list of tables [[application.clients]]."),
        ("[5]", "a list of tables [[application.clients]]."),
        ("5", "a list of tables [[application.clients]]."),
        ("x", 'a list of tables [[application.clients]], or an array such as [{client = "backend-*"}].'),
        ('[{clients = "a"}]', "and clients is no part of one: client, user, listener, property are."),
        ("[{client = 5}]", "each client a text of 1 to 1024 bytes."),
        ('[{user = ""}]', "each user a text of 1 to 1024 bytes."),
        (f'[{{client = "{"a" * (LONGEST + 1)}"}}]', "each client a text of 1 to 1024 bytes."),
        (f'[{{client = "{"a*" * 9}"}}]', "each client with up to 8 `*`."),
        ('[{listener = "http"}]', "each listener one of tcp, tls, ws, wss."),
        ('[{property = "kind"}]', "each property a NAME=VALUE."),
        ('[{property = "=kind"}]', "each property a NAME=VALUE."),
        (f"[{', '.join(['{}'] * (MOST + 1))}]", f"at most {MOST} tables."),
    ],
)
def test_a_mistake_is_one_sentence(tables: str, right: str) -> None:
    options = [Given("application.clients", tables, "--set"), Given("store.durability", "process", "--set")]
    with pytest.raises(ConfigError) as caught:
        load(environ={}, options=options, default_file=NOWHERE)

    assert str(caught.value).endswith(right)


def test_sessions_that_are_not_stored_have_no_logs() -> None:
    """A client would be told that it is one of them, and lose everything with its worker."""
    options = [Given("application.clients", '[{client = "a"}]', "--set")]
    with pytest.raises(ConfigError, match=r'store\.durability = "memory" keeps none'):
        load(environ={}, options=options, default_file=NOWHERE)
