from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
import structlog.testing


@pytest.fixture
def log() -> Iterator[list[MutableMapping[str, Any]]]:
    """The lines that were logged, as dicts."""
    with structlog.testing.capture_logs() as lines:
        yield lines
