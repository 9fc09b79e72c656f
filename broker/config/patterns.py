# Patterns of client ids: a client id with `*` for any text.
#
# A pattern is matched by searching its parts from left to right, which never goes back. There are no regular
# expressions, because some of them take exponential time.
from typing import Final

WILDCARDS: Final = 8  # in a pattern
ANY: Final = "*"


def is_pattern(text: str) -> bool:
    """Whether *text* has at most WILDCARDS wildcards, and something else besides."""
    return text.count(ANY) <= WILDCARDS and text.replace(ANY, "") != ""


def matches(pattern: str, text: str) -> bool:
    """Whether *text* is *pattern* with some text in place of each `*`."""
    parts = pattern.split(ANY)
    if len(parts) == 1:
        return pattern == text
    first, last = parts[0], parts[-1]
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    position, end = len(first), len(text) - len(last)
    for part in parts[1:-1]:
        found = text.find(part, position, end)
        if found < 0:
            return False
        position = found + len(part)
    return True
