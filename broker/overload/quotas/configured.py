# The overrides of the configuration (config/overrides.py): a worker finds the first one that names a client.
#
# Each CONNECT and each will asks, so client ids and users are looked up, and only patterns are tried one by one.
from collections.abc import Sequence
from typing import Final

from broker.config.overrides import CLIENT, PATTERN, QUOTAS, USER, ClientOverride
from broker.config.patterns import matches
from broker.config.schema import QuotaScope

NONE: Final = 1 << 30  # the place of no override


class Override:
    """One override, with the quotas that a session has by it."""

    def __init__(self, place: int, table: ClientOverride, general: QuotaScope) -> None:
        """*place* in the file, from 0. *general*: the quotas of all other sessions."""
        own = {key: getattr(table, key) for key in QUOTAS}
        self.place = place
        self.table = table
        self.exempt = bool(table.exempt)
        self.session = QuotaScope(**{key: getattr(general, key) if own[key] is None else own[key] for key in QUOTAS})


class ConfiguredOverrides:
    def __init__(self, general: QuotaScope) -> None:
        """*general*: the quotas of sessions without an override."""
        self.tables: tuple[ClientOverride, ...] = ()
        self._general = general
        self._overrides: list[Override] = []
        self._clients: dict[str, int] = {}  # places by client id
        self._users: dict[str, int] = {}
        self._patterns: list[tuple[int, str]] = []

    def replace(self, tables: Sequence[ClientOverride]) -> None:
        """Use *tables*, in their order, in place of the former ones."""
        self.tables = tuple(tables)
        self._overrides = [Override(place, table, self._general) for place, table in enumerate(tables)]
        self._clients = {one.table.name: one.place for one in self._overrides if one.table.by == CLIENT}
        self._users = {one.table.name: one.place for one in self._overrides if one.table.by == USER}
        self._patterns = [(one.place, one.table.name) for one in self._overrides if one.table.by == PATTERN]

    def find(self, client_id: str, user: str | None) -> Override | None:
        """The override of a client; *user* is its verified name, None for an anonymous client."""
        if not self._overrides:
            return None
        place = self._clients.get(client_id, NONE)
        if user is not None:
            place = min(place, self._users.get(user, NONE))
        for at, pattern in self._patterns:
            if at > place:
                break
            if matches(pattern, client_id):
                place = at
                break
        return None if place == NONE else self._overrides[place]
