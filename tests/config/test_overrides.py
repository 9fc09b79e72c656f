# The tables [[clients.overrides]]: what they may contain, and where a mistake is said to be.
import json
from pathlib import Path

import pytest

from broker.config.overrides import MOST, PATTERNS, ClientOverride, override_from
from broker.config.schema import ConfigError
from broker.config.sources import Given, load

NOWHERE = Path("/nowhere/weir.toml")
TABLES = """
[limits]
queue = 7

[[clients.overrides]]
client = "gateway-1"
incoming_messages = "500/s"
incoming_bytes = ""
queue_bytes = "2MiB"

[[clients.overrides]]
pattern = "probe-*"
exempt = true
pending = 3
queue = 5
"""
TOO_MANY = "[" + ", ".join(f'{{pattern = "a{n}*", queue = 5}}' for n in range(PATTERNS + 1)) + "]"


def test_tables_become_overrides_in_their_order(tmp_path: Path) -> None:
    """A client would have the limits of another, or of all clients."""
    file = tmp_path / "weir.toml"
    file.write_text(TABLES)
    loaded = load(file, {})

    gateway, probes = loaded.config.clients.overrides
    named = ClientOverride(
        by="client", name="gateway-1", incoming_messages="500/s", incoming_bytes="", queue_bytes=2 << 20
    )
    assert named == gateway
    assert ClientOverride(by="pattern", name="probe-*", exempt=True, pending=3, queue=5) == probes
    assert [gateway, probes] == [override_from(one.described()) for one in (gateway, probes)]
    assert f"{file}, line 5" == loaded.sources["clients.overrides"]
    assert f"{file}, line 3" == loaded.sources["limits.queue"]


def test_what_is_shown_can_be_written_again(tmp_path: Path) -> None:
    """`weir config show` would print what no file can contain."""
    file = tmp_path / "weir.toml"
    file.write_text(TABLES)
    loaded = load(file, {})
    (shown,) = [one for one in loaded.describe() if one.key == "clients.overrides"]

    given = Given("clients.overrides", shown.text, "--set")
    assert loaded.config.clients == load(environ={}, options=[given], default_file=NOWHERE).config.clients
    as_json = [override_from(one) for one in json.loads(json.dumps(shown.value))]
    assert loaded.config.clients.overrides == tuple(as_json)


@pytest.mark.parametrize(
    ("tables", "right"),
    [
        ("[{queue = 5}]", "each with exactly one of client, user, pattern."),
        ('[{client = "a", user = "b", queue = 5}]', "each with exactly one of client, user, pattern."),
        ('[{client = "a"}]', "and the one of client a has no setting such as queue."),
        ('[{client = "a", qeue = 5}]', "and qeue of client a is no setting there: incoming_messages, incoming_bytes,"),
        ('[{client = "a", queue = -1}]', "and queue of client a must be a whole number from 0 to 1099511627776."),
        ('[{client = "a", subscriptions = "5"}]', 'and subscriptions of client a must be "", or a rate such as'),
        ('[{client = "", queue = 5}]', "each client a text of 1 to 1024 bytes."),
        ('[{pattern = "**", queue = 5}]', "each pattern a client id with up to 8 `*`, and not only `*`."),
        ('[{client = "a", queue = 5}, {client = "a", queue = 6}]', "a list in which client a is named once."),
        ('[{user = "a", queue_bytes = 5}]', "a list in which queue_bytes of user a is 0 or at least limits.packet_byt"),
        ('[{user = "a", incoming_bytes = "9B/s"}]', "incoming_bytes of user a has windows that hold limits.packet_by"),
        ("[5]", "a list of tables [[clients.overrides]]."),
        ("5", "a list of tables [[clients.overrides]]."),
        ("x", 'a list of tables [[clients.overrides]], or an array such as [{client = "a", queue = 5}].'),
        (f"[{', '.join(['{}'] * (MOST + 1))}]", f"at most {MOST} tables."),
        (TOO_MANY, f"tables of which at most {PATTERNS} have a pattern."),
    ],
)
def test_a_table_that_means_nothing_is_refused(tables: str, right: str) -> None:
    """A misspelt limit would not hold, and each CONNECT be compared with any number of patterns."""
    with pytest.raises(ConfigError) as refused:
        load(environ={}, options=[Given("clients.overrides", tables, "--set")], default_file=NOWHERE)

    assert right in str(refused.value)
