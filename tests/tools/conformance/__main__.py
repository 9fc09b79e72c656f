# python -m tests.tools.conformance [--missing]: statement, duty, code and tests, as a Markdown table.
import argparse

from tests.tools.bench.table import markdown
from tests.tools.conformance.table import Statement, conformance


def row(statement: Statement) -> list[str]:
    number = f"[MQTT-{statement.number}]"
    if statement.version != "5.0":
        number = f"{statement.version} {number}"
    same = f" (5.0: {', '.join(statement.same)})" if statement.same else ""
    excuse = f"; {statement.excuse}" if statement.excuse else ""
    return [
        number,
        f"{statement.who}: {statement.duty}{same}{excuse}",
        "<br>".join(statement.code),
        "<br>".join(statement.tests),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.conformance", description="What is obeyed where.")
    parser.add_argument("--missing", action="store_true", help="only what lacks a citation in the code or in a test")
    arguments = parser.parse_args()
    found = conformance()
    shown = [statement for statement in found if statement.missing or not arguments.missing]
    print(markdown(["statement", "duty", "code", "tests"], [row(statement) for statement in shown]))
    excused = sum(statement.missing and bool(statement.excuse) for statement in found)
    gaps = sum(statement.missing and not statement.excuse for statement in found)
    print(f"\n{len(found)} statements, {excused} excused, {gaps} missing.")


if __name__ == "__main__":
    main()
