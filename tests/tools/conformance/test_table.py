# The table of statements holds, and would be seen not to.
from itertools import pairwise

import pytest

from tests.tools.conformance.table import (
    VERSIONS,
    Statement,
    citations,
    conformance,
    loose,
    sources,
    statements,
    texts_of_tests,
)

OPEN, CLOSE = "[MQTT", "]"  # or this file would cite what it makes up


def cite(number: str) -> str:
    return f"{OPEN}-{number}{CLOSE}"


def key(number: str) -> list[int]:
    return [int(part) for part in number.replace("-", ".").split(".")]


@pytest.fixture(scope="module")
def table() -> list[Statement]:
    return conformance()


def test_every_statement_is_obeyed_and_tested(table: list[Statement]) -> None:
    """A duty would be met by nobody, or by code that no test guards."""
    assert [] == [f"{one.version} {one.number}: {one.duty}" for one in table if one.missing and not one.excuse]


def test_an_excuse_is_for_what_is_missing(table: list[Statement]) -> None:
    """An excuse would stay when its reason has gone, and hide the next gap."""
    assert [] == [f"{one.version} {one.number}: {one.excuse}" for one in table if one.excuse and not one.missing]


@pytest.mark.parametrize("folder", ["broker", "tests"])
def test_what_is_cited_exists(folder: str) -> None:
    """A citation would lead nowhere: a number misread, of the other version, or no longer where it was."""
    known = statements()
    unknown = {}
    for file in sources(folder):
        text = file.read_text()
        bad = [f"{version} {number}" for version, number in citations(text) if (version, number) not in known]
        if file.parent.name != "conformance":
            bad += loose(text)
        if bad:
            unknown[str(file)] = bad

    assert {} == unknown


@pytest.mark.parametrize("version", list(VERSIONS))
def test_the_list_is_whole_and_in_order(version: str) -> None:
    """A statement that was left out would never be missed."""
    numbers = [key(number) for one, number in statements() if one == version]
    gaps = [
        (before, after)
        for before, after in pairwise(numbers)
        if after < before or (after[:3] == before[:3] and after[3] != before[3] + 1)
    ]

    assert [] == gaps
    # 5.0 has no first statement of 2.2.1; each other section begins with one.
    begins = {tuple(number[:3]): number[3] for number in reversed(numbers)}
    assert ({(2, 2, 1)} if version == "5.0" else set()) == {section for section, n in begins.items() if n != 1}


def test_citations_are_found() -> None:
    """A citation would not count, or for another statement than it names."""
    text = f"{cite('3.1.0-1')}, 3.1.1 {cite('3.1.2-4')} and {cite('4.6.0-1')} to {cite('4.6.0-3')}; (3.1.2.3)"

    assert [
        ("5.0", "3.1.0-1"),
        ("3.1.1", "3.1.2-4"),
        ("5.0", "4.6.0-1"),
        ("5.0", "4.6.0-2"),
        ("5.0", "4.6.0-3"),
    ] == list(citations(text))
    with pytest.raises(ValueError, match="two sections"):
        list(citations(f"{cite('3.1.2-1')} to {cite('3.1.3-4')}"))


def test_what_looks_like_a_citation_is_seen() -> None:
    """A section number in brackets, or a slip of the pen, would pass for a citation that nobody checks."""
    assert [] == loose(f"{cite('3.1.0-1')}")
    assert [f"{OPEN}-3.1.2.3{CLOSE}", f"{OPEN} 3.1.0-1{CLOSE}"] == loose(f"{cite('3.1.2.3')} {OPEN} 3.1.0-1{CLOSE}")


def test_a_test_cites_in_its_docstring_and_beside_its_cases() -> None:
    """The citation of another test, or of a helper, would count for this one."""
    source = f'''
# {cite("1.1.1-1")}
@mark.parametrize("x", [1])  # {cite("1.1.1-2")}
def test_one(x):
    """{cite("1.1.1-3")}"""

def helper():
    """{cite("1.1.1-4")}"""

async def test_two():
    assert True  # {cite("1.1.1-5")}
'''

    assert {"test_one": [("5.0", "1.1.1-2"), ("5.0", "1.1.1-3")], "test_two": [("5.0", "1.1.1-5")]} == {
        name: list(citations(text)) for name, text in texts_of_tests(source)
    }
