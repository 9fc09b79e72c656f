# `weir bench` without a broker: what is asked for and cannot be, and how figures are shown.
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.bench_view import bar, coarse, count, time
from cli.endpoint import Address, BadAddress, read_address
from cli.load.histogram import Histogram
from cli.reason_words import in_words
from tests.cli.running import weir


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rate", "1", "--window", "1"], "either --rate (open loop) or --window"),
        (["--version", "6"], "--version 6 is not valid: it must be 3.1, 3.1.1 or 5."),
        (["--payload", "3"], "--payload 3 is too small"),
        (["--topic", "all"], "needs %i for pairs"),
        (["h:x"], "h:x is not an address: it must be HOST or HOST:PORT"),
        (["--cafile", "/no/such"], "cannot read --cafile /no/such: No such file or directory."),
    ],
)
def test_what_cannot_be_measured_is_one_sentence_and_exit_code_2(arguments: list[str], words: str) -> None:
    """The user would get a traceback, or figures of something else."""
    done = weir("bench", *arguments)

    assert (2, "", 1) == (done.returncode, done.stdout, len(done.stderr.splitlines()))
    assert words in done.stderr


def test_a_host_that_does_not_exist_is_told() -> None:
    """A typing error would end in a traceback."""
    done = weir("bench", "no-such-host.invalid")

    assert 4 == done.returncode
    assert done.stderr.startswith("weir: there is no host no-such-host.invalid: ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("host", Address("host", 1883, False, None)),
        ("host:1", Address("host", 1, False, None)),
        ("10.0.0.1:65535", Address("10.0.0.1", 65535, False, None)),
        ("::1", Address("::1", 1883, False, None)),
        ("[::1]", Address("::1", 1883, False, None)),
        ("[::1]:2", Address("::1", 2, False, None)),
        ("mqtt://host/", Address("host", 1883, False, None)),
        ("mqtts://host", Address("host", 8883, True, None)),
        ("WS://host", Address("host", 8083, False, "/mqtt")),
        ("wss://[::1]:443/a/b?c", Address("::1", 443, True, "/a/b?c")),
    ],
)
def test_addresses_are_read(text: str, expected: Address) -> None:
    """Some brokers could not be named."""
    assert expected == read_address(text, None, tls=False)


def test_options_win_over_the_address() -> None:
    """`-p 1884 --tls` would be ignored where the address says something."""
    assert Address("host", 2, True, None) == read_address("host:1", 2, tls=True)
    assert Address("host", 8084, True, "/mqtt") == read_address("ws://host", None, tls=True)


@pytest.mark.parametrize(
    "text",
    ["", ":1883", "host:", "host:0", "host:65536", "host:-1", "host:1x", "[]:1", "[::1]x", "http://host:80", "host/a"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """Another port would be loaded than was meant."""
    with pytest.raises(BadAddress):
        read_address(text, None, tls=False)


@given(st.lists(st.integers(0, 10_000_000), min_size=1))
def test_the_shown_histogram_has_every_value_once(values: list[int]) -> None:
    """Rows would not add up to the whole."""
    histogram = Histogram()
    for value in values:
        histogram.add(value, 1)
    rows = coarse(histogram)

    assert len(values) == sum(times for _, times in rows)
    assert max(values) <= rows[-1][0]
    assert sorted(rows) == rows


def test_figures_are_written_for_people() -> None:
    """Nobody could read them at a glance."""
    assert ["0", "999", "1 234 567"] == [count(number) for number in (0, 999, 1_234_567)]
    assert ["0 us", "999 us", "1.5 ms", "20 ms", "1.25 s"] == [time(us) for us in (0, 999, 1500, 20_000, 1_250_000)]
    assert ["█" * 40, "█" * 20, "▏", "#" * 20] == [bar(1, True), bar(0.5, True), bar(1 / 320, True), bar(0.5, False)]


def test_codes_are_told_in_words_and_unknown_ones_as_such() -> None:
    """The user would have to look codes up; a broker that invents some would end in a traceback."""
    assert "4, bad user name or password: give them with --user and --password." == in_words("CONNACK", 4)
    assert "0x97, quota exceeded." == in_words("PUBACK", 0x97)
    assert "0xff, a code that MQTT does not define." == in_words("CONNACK", 0xFF)
