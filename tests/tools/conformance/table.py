# Which statement of the specifications is obeyed where, and which test would fail if it were not.
#
# Nothing is kept by hand but the list of statements (the two .toml files): the rest is read from the citations. A
# line of code cites the statement that it obeys, a test cites it in its docstring or beside the case that breaks it.
# A citation is [MQTT-x.y.z-n] with the number of 5.0, or "3.1.1 [MQTT-...]" where 3.1.1 says something of its own; two
# of them with "to" between are a range. Section numbers are written without the brackets.
import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[2]
VERSIONS: Final = {"5.0": HERE / "mqtt5.toml", "3.1.1": HERE / "mqtt311.toml"}

NUMBER: Final = r"\[MQTT-(\d+\.\d+\.\d+)-(\d+)\]"
CITATION: Final = re.compile(rf"(3\.1\.1 )?{NUMBER}(?: to {NUMBER})?")
LOOSE: Final = re.compile(r"\[MQTT[^\]]*\]")  # what looks like one

Name = tuple[str, str]  # (version, number), as ("5.0", "3.1.0-1")


@dataclass
class Statement:
    """A normative statement, and the places that cite it or one that says the same."""

    version: str
    number: str
    who: str
    duty: str
    excuse: str = ""
    same: list[str] = field(default_factory=list)  # statements of 5.0
    code: list[str] = field(default_factory=list)  # "broker/protocol/hub.py:42"
    tests: list[str] = field(default_factory=list)  # "tests/protocol/test_wills.py::test_name"

    @property
    def missing(self) -> bool:
        return not (self.code and self.tests)


def statements() -> dict[Name, Statement]:
    """All statements of both versions, without any place."""
    read: dict[Name, Statement] = {}
    for version, file in VERSIONS.items():
        for number, entry in tomllib.loads(file.read_text()).items():
            same = entry.pop("same", [])
            if same:
                other = [read["5.0", one] for one in same]
                entry = {"who": other[0].who, "duty": "; ".join(one.duty for one in other)}
                entry["excuse"] = next((one.excuse for one in other if one.excuse), "")
            read[version, number] = Statement(version, number, same=same, **entry)
    return read


def citations(text: str) -> Iterator[Name]:
    """The statements that *text* cites."""
    for match in CITATION.finditer(text):
        prefix, section, first, last_section, last = match.groups()
        if last is not None and last_section != section:
            raise ValueError(f"a range over two sections: {match.group()}")
        for n in range(int(first), int(last or first) + 1):
            yield "3.1.1" if prefix else "5.0", f"{section}-{n}"


def loose(text: str) -> list[str]:
    """What looks like a citation in *text* and is none."""
    return [found for found in LOOSE.findall(text) if not re.fullmatch(NUMBER, found)]


def texts_of_tests(source: str) -> Iterator[tuple[str, str]]:
    """(name, text) of each test in *source*: its docstring, its cases and the comments beside them."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            begin = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            yield node.name, "\n".join(lines[begin - 1 : node.end_lineno])


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def cited_in_code() -> dict[Name, list[str]]:
    """The lines of the broker that cite each statement."""
    places = defaultdict(list)
    for file in sources("broker"):
        for at, line in enumerate(file.read_text().splitlines(), 1):
            for name in citations(line):
                places[name].append(f"{file.relative_to(ROOT)}:{at}")
    return places


def cited_in_tests() -> dict[Name, list[str]]:
    """The tests that cite each statement."""
    places = defaultdict(list)
    for file in sources("tests"):
        for test, text in texts_of_tests(file.read_text()):
            for name in dict.fromkeys(citations(text)):
                places[name].append(f"{file.relative_to(ROOT)}::{test}")
    return places


def conformance() -> list[Statement]:
    """All statements with the places that cite them, those of 3.1.1 also with those of what says the same."""
    code, tests = cited_in_code(), cited_in_tests()
    known = statements()
    for (version, number), statement in known.items():
        others = [known["5.0", one] for one in statement.same]
        statement.code = list(code[version, number])
        statement.tests = list(tests[version, number])
        if others and all(one.code for one in others):
            statement.code += [place for one in others for place in one.code]
        if others and all(one.tests for one in others):
            statement.tests += [place for one in others for place in one.tests]
    return list(known.values())
