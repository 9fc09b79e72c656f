# Values by name: kept while the name has users, and for the names that lost their last user latest.
from typing import Generic, TypeVar

_T = TypeVar("_T")


class BoundedRegistry(Generic[_T]):
    """Forgets the value of the name that lost its last user first, when more than *most* names have no user."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[str, _T] = {}
        self._users: dict[str, int] = {}  # number of users; only of names that have some
        self._absent: dict[str, None] = {}  # names without a user, the earliest first

    def find(self, name: str) -> _T | None:
        return self._values.get(name)

    def keep(self, name: str, value: _T) -> None:
        self._values[name] = value

    def arrive(self, name: str) -> None:
        """*name*, which has a value, has one more user."""
        self._users[name] = self._users.get(name, 0) + 1
        self._absent.pop(name, None)

    def leave(self, name: str) -> None:
        """*name* has one user less."""
        self._users[name] -= 1
        if self._users[name]:
            return
        del self._users[name]
        self._absent[name] = None
        if len(self._absent) > self._most:
            first = next(iter(self._absent))
            del self._absent[first]
            del self._values[first]

    def statistics(self) -> tuple[int, int]:
        """(names with users, names without that are remembered)."""
        return len(self._users), len(self._absent)
