# The version of the format of durable data, at real servers.
import threading
from collections.abc import Callable

import pytest

from broker.store.redis.keys import DURABLE_FORMAT, Keys
from supervisor.durable_format import claim_format
from tests.redis_servers import SERVERS, RunningRedis

pytestmark = pytest.mark.system  # real servers

StartRedis = Callable[..., RunningRedis]
KEY = Keys("weir").format


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: ".".join(map(str, server.version)))
def test_the_newest_format_is_noted(start_redis: StartRedis, server: object) -> None:
    """An older build would take the sessions of a newer one for damaged, or lose them."""
    with start_redis(server).client() as client:
        assert "" == claim_format(client, KEY, "it")
        assert str(DURABLE_FORMAT).encode() == client.get("weir:format")
        assert ["", ""] == [claim_format(client, KEY, "it", known) for known in (9, 10)]
        assert b"10" == client.get(KEY)
        refused = [claim_format(client, KEY, "it", known) for known in (9, 1)]

        assert refused[0] == (
            "The durable sessions in it have format 10, and this version of Weir knows format 9: "
            "use the version of Weir that wrote them, or set redis.prefix to another one."
        )
        assert "knows format 1:" in refused[1]
        assert b"10" == client.get(KEY)


def test_what_is_no_version_is_a_sentence_and_stays(start_redis: StartRedis) -> None:
    """A value of somebody else would be overwritten, or end the start in a traceback."""
    values = ["", "0", "01", "-1", "1.5", "1e3", "0x1", " 1", "1\n", "nan", "two", "9" * 10, "9" * 5000]
    with start_redis().client() as client:
        for found in [*(value.encode() for value in values), b"\xff\x00"]:
            client.set(KEY, found)
            said = claim_format(client, KEY, "it", 3)

            assert said.startswith("The key weir:format in it has '"), found
            assert (1, True, True) == (len(said.splitlines()), len(said) < 300, said.endswith(".")), found
            assert found == client.get(KEY)


def test_a_key_of_another_type_is_a_sentence_and_stays(start_redis: StartRedis) -> None:
    """The start would end with an error of Redis that names no key."""
    with start_redis().client() as client:
        client.hset("weir:format", "a", "b")

        assert claim_format(client, KEY, "it").startswith("The key weir:format in it has a value of another type and")
        assert {b"a": b"b"} == client.hgetall("weir:format")


def test_of_an_older_and_a_newer_node_that_start_at_once_the_newer_wins(start_redis: StartRedis) -> None:
    """The older node would write its version last, and read what the newer one stores."""
    server = start_redis()
    rounds = 200
    answers: dict[int, list[str]] = {1: [], 2: []}
    together = threading.Barrier(2)

    def claim(known: int) -> None:
        with server.client() as client:
            for number in range(rounds):
                together.wait(30)
                answers[known].append(claim_format(client, b"weir%d:format" % number, "it", known))

    threads = [threading.Thread(target=claim, args=(known,)) for known in answers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [""] * rounds == answers[2]
    assert rounds == len(answers[1])
    with server.client() as client:
        assert {b"2"} == {client.get(f"weir{number}:format") for number in range(rounds)}
