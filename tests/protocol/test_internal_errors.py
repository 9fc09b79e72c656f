# How bugs are reported.
from broker.metrics.counters import Counters
from broker.protocol.internal_errors import InternalErrors


class Lines:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []

    def info(self, event: str, **facts: object) -> None:
        raise AssertionError("a bug is a warning")

    def warning(self, event: str, **facts: object) -> None:
        self.lines.append((event, facts))

    def error(self, event: str, **facts: object) -> None:
        raise AssertionError("a bug that costs one connection is a warning")


def test_a_bug_is_counted_and_logged_with_its_exception() -> None:
    """An operator would not learn of a bug, or a developer not where it is."""
    counters, lines = Counters(), Lines()
    errors = InternalErrors(counters, lines)
    bug = RuntimeError("a bug")
    errors.report(bug)
    errors.report_for("192.0.2.1:5000", bug)

    assert 2 == counters.internal_errors
    assert [
        ("internal_error", {"exc_info": bug}),
        ("internal_error", {"exc_info": bug, "address": "192.0.2.1:5000"}),
    ] == lines.lines
