# The seal of what is left in Redis.
import pytest

from broker.cluster.seal import LOG_INTERVAL, REPORT, WILL, Seal
from broker.metrics.counters import Counters
from tests.supervisor.test_limits import Lines

KEY = b"a key of at least sixteen bytes "


def seal_of(key: bytes = KEY) -> tuple[Seal, Counters, Lines]:
    counters, log = Counters(), Lines()
    return Seal(key, counters, log), counters, log


def test_what_was_sealed_is_opened() -> None:
    """No worker would believe another one."""
    seal, counters, log = seal_of()

    assert b"data" == seal.open(WILL, b"me", seal.seal(WILL, b"me", b"data"), 0.0)
    assert (0, []) == (counters.redis_forged, log.lines)


@pytest.mark.parametrize(
    ("kind", "about", "key"), [(REPORT, b"me", KEY), (WILL, b"you", KEY), (WILL, b"me", KEY[:-1] + b"!")]
)
def test_a_seal_for_something_else_is_not_valid(kind: bytes, about: bytes, key: bytes) -> None:
    """The will of one client could be given to another one, or a report be made of it."""
    seal, counters, _ = seal_of()

    assert None is seal.open(WILL, b"me", seal_of(key)[0].seal(kind, about, b"data"), 0.0)
    assert 1 == counters.redis_forged


def test_each_changed_byte_is_noticed() -> None:
    """A report could be changed on its way."""
    seal, counters, _ = seal_of()
    sealed = seal.seal(REPORT, b"", b"data")
    for position in range(len(sealed)):
        changed = bytearray(sealed)
        changed[position] ^= 1
        assert None is seal.open(REPORT, b"", bytes(changed), 0.0)
        assert None is seal.open(REPORT, b"", sealed[:position], 0.0)

    assert 2 * len(sealed) == counters.redis_forged


def test_forgeries_are_logged_once_a_minute() -> None:
    """Whoever reaches Redis could fill the disk with log lines."""
    seal, _, log = seal_of()
    for now in (0.0, 1.0, LOG_INTERVAL - 1, LOG_INTERVAL, LOG_INTERVAL + 1):
        seal.open(REPORT, b"", b"forged", now)

    assert [1, 3] == [facts["records"] for event, facts in log.lines if event == "redis_forged"]


def test_without_a_key_nothing_is_sealed_or_checked() -> None:
    """Nodes of a cluster without a key file would not hear each other."""
    seal, _, _ = seal_of(b"")

    assert b"data" == seal.seal(REPORT, b"", b"data") == seal.open(REPORT, b"", b"data", 0.0)
