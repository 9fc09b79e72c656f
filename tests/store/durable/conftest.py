from collections.abc import Iterator

import pytest

from broker.store.durable.places import NONE_READY
from broker.store.durable.stored_list import NOTHING_READ


@pytest.fixture(autouse=True)
def shared_containers() -> Iterator[None]:
    """The containers that all empty queues share would have gained something: every session would get it."""
    yield
    assert not NONE_READY and not NOTHING_READ
