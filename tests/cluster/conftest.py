# The fixtures with real Redis servers, which the store's tests define.
from tests.store.conftest import every_server, loop

__all__ = ["every_server", "loop"]
