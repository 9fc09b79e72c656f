# The layout of the broker, as far as import contracts do not hold it.
from tests.conftest import ROOT

BROKER = ROOT / "broker"
LOOSE_MODULES = 7  # __init__.py and six more
MODULE_LINES = 600
WORKER_LINES = 250


def lines(path: str) -> int:
    return len((BROKER / path).read_text().splitlines())


def test_modules_lie_in_packages() -> None:
    """The modules outside packages would become a package without a name again."""
    assert len(list(BROKER.glob("*.py"))) <= LOOSE_MODULES


def test_no_module_is_too_long_to_be_read_at_once() -> None:
    """A module would grow until nobody knows what it is about."""
    paths = [path.relative_to(BROKER).as_posix() for path in BROKER.rglob("*.py")]

    assert [] == [path for path in paths if lines(path) > MODULE_LINES]


def test_the_worker_only_composes() -> None:
    """Behaviour would move to the one place that knows all parts."""
    assert lines("worker.py") <= WORKER_LINES
