# Patterns of client ids.
import pytest

from broker.config.patterns import matches


@pytest.mark.parametrize(
    ("pattern", "text", "same"),
    [
        ("a*", "a", True),
        ("*a*b*", "xaxbx", True),
        ("*a*b*", "xbxax", False),
        ("ab*ba", "aba", False),
        ("a*b*c", "abbc", True),
        ("a", "ab", False),
        ("a.c", "abc", False),
    ],
)
def test_a_pattern_has_wildcards_and_nothing_else(pattern: str, text: str, same: bool) -> None:
    """A ban would keep out clients that it does not name."""
    assert same is matches(pattern, text)
