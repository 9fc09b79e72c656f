# `weir limit`: what it prints, and what it says of what cannot be.
import json
import re

import pytest

from broker.mqtt.packets import V5
from tests.cli.running import weir
from tests.system.processes import BrokerProcess
from tests.system.raw import RawClient

pytestmark = pytest.mark.system

FOR_AN_HOUR = ("--ttl", "1h", "--reason", "[red]floods[/red]")


def test_a_limit_is_set_listed_and_dropped(running: BrokerProcess, folder: str) -> None:
    """An operator would not see what holds for whom, or a client id and a reason paint on the terminal."""
    client = RawClient(running.port, V5)
    client.connect("[bold]one[/bold]")
    none = weir("limit", "list", "--folder", folder).stdout
    here = weir("limit", "set", "[bold]one[/bold]", "--rate", "100:1, 5000:60", *FOR_AN_HOUR, "--folder", folder)
    away = weir("limit", "set", "two", "--no-protection", *FOR_AN_HOUR, "--folder", folder)
    listed = weir("limit", "list", "--folder", folder, COLUMNS="200").stdout
    told = json.loads(weir("limit", "list", "--folder", folder, "--json").stdout)["limits"]
    dropped = [weir("limit", "drop", name, "--folder", folder) for name in ("[bold]one[/bold]", "two")]
    client.close()

    assert "No client has an override.\n" == none
    said = "The limits of client [bold]one[/bold] are overridden for 1h 0m: 100:1, 5000:60 messages."
    assert f"{said} The client is connected to worker 0; the override applies now.\n" == here.stdout
    said = "The limits of client two are overridden for 1h 0m: exempt from credits."
    assert f"{said} The client is not connected. The override applies when it connects.\n" == away.stdout
    assert re.search(
        r"\[bold\]one\[/bold\] +100:1,5000:60 messages +59m \d+s .*uid \d+\) +\[red\]floods\[/red\]", listed
    )
    assert [("[bold]one[/bold]", "100:1,5000:60", False), ("two", "", True)] == [
        (one["client"], one["rate"], one["exempt"]) for one in told
    ]
    assert [0, 0] == [one.returncode for one in dropped]
    assert "The override of client two was removed. The configuration applies to it again.\n" == dropped[1].stdout


@pytest.mark.parametrize(
    ("code", "arguments", "sentence"),
    [
        (
            2,
            ["set", "c", "--rate", "0/s", *FOR_AN_HOUR],
            'rate = "0/s" is not valid: it must be of whole counts from 1',
        ),
        (
            2,
            ["set", "c", "--rate", "fast", *FOR_AN_HOUR],
            'rate = "fast" is not valid: it must be a rate such as "100/s"',
        ),
        (2, ["set", "c", *FOR_AN_HOUR], "The limit of c changes nothing: give it a rate, or exempt it."),
        (2, ["set", "", "--rate", "1/s", *FOR_AN_HOUR], "a client id has 1 to 4096 bytes"),
        (2, ["set", "c", "--rate", "1/s", "--ttl", "1h", "--reason", " "], "needs a reason of 1 to 200 characters"),
        (
            2,
            ["set", "c", "--rate", "1/s", "--ttl", "31d", "--reason", "x"],
            '--ttl "31d" is not valid: it must be a duration from 1ms to 30d.',
        ),
        (
            2,
            ["set", "c", "--rate", "1/s", "--ttl", "soon", "--reason", "x"],
            '--ttl "soon" is not valid: it must be a duration such as 15, "500ms", "5m", "2h" or "7d".',
        ),
        (1, ["drop", "nobody"], "The client 'nobody' has no override."),
    ],
)
def test_what_cannot_be_is_one_sentence(folder: str, code: int, arguments: list[str], sentence: str) -> None:
    """A client would be let go without a limit, or a user have to guess what is wrong."""
    done = weir("limit", *arguments, "--folder", folder)

    assert (code, "", 1) == (done.returncode, done.stdout, len(done.stderr.splitlines())), done.stderr
    assert sentence in done.stderr
    assert {"limits": [], "configured": []} == json.loads(weir("limit", "list", "--folder", folder, "--json").stdout)


@pytest.mark.parametrize("left_out", ["--ttl", "--reason"])
def test_a_limit_has_an_end_and_a_reason(folder: str, left_out: str) -> None:
    """A limit that was set in a hurry would be there next year, and nobody know what for."""
    given = {"--rate": "1/s", "--ttl": "1h", "--reason": "test"}
    words = [word for option, value in given.items() if option != left_out for word in (option, value)]
    done = weir("limit", "set", "c", *words, "--folder", folder)

    assert 2 == done.returncode
    assert left_out in done.stderr
