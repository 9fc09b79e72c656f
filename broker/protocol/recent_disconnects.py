# How the connections of clients ended lately. `weir why` reads it for a client that is not connected.
#
# Disconnects and refusals are kept apart, because anybody can send a CONNECT with another client's id: such a CONNECT
# must neither hide how the client itself was disconnected nor push that record out. Both tables are bounded; the oldest
# record makes room for the newest.
from collections import OrderedDict
from typing import Final

from broker.reasons import CloseReason

MAX_CLIENTS: Final = 4096  # records in each table, of about 500 bytes
MAX_CLIENT_ID: Final = 1024  # characters: longer ids are not recorded, as they would cost megabytes
MAX_DETAIL: Final = 200  # characters


class RecentDisconnect:
    def __init__(self, reason: CloseReason, detail: str, address: str, at: float) -> None:
        self.reason = reason
        self.detail = detail[:MAX_DETAIL]
        self.address = address
        self.at = at
        self.undelivered = 0  # messages that were queued for the client when its session ended


class RecentDisconnects:
    def __init__(self) -> None:
        self._disconnects: OrderedDict[str, RecentDisconnect] = OrderedDict()  # the oldest record stands first
        self._refusals: OrderedDict[str, RecentDisconnect] = OrderedDict()

    def note_disconnect(self, client_id: str, disconnect: RecentDisconnect) -> None:
        """Record the end of a connection that had a session."""
        _note(self._disconnects, client_id, disconnect)

    def note_refusal(self, client_id: str, disconnect: RecentDisconnect) -> None:
        """Record the end of a connection without a session. *client_id* is the one in its CONNECT, if it sent one."""
        _note(self._refusals, client_id, disconnect)

    def note_undelivered(self, client_id: str, messages: int) -> None:
        """Record that the session of *client_id* ended with *messages* queued, perhaps long after its connection."""
        disconnect = self._disconnects.get(client_id)
        if disconnect is not None:
            disconnect.undelivered = messages

    def last_disconnect(self, client_id: str) -> RecentDisconnect | None:
        """How the last connection of *client_id* that had a session ended."""
        return self._disconnects.get(client_id)

    def last_refusal(self, client_id: str) -> RecentDisconnect | None:
        """How the last connection that named *client_id* and got no session ended."""
        return self._refusals.get(client_id)

    def statistics(self) -> tuple[int, int]:
        """(recorded disconnects, recorded refusals)."""
        return len(self._disconnects), len(self._refusals)


def _note(table: OrderedDict[str, RecentDisconnect], client_id: str, disconnect: RecentDisconnect) -> None:
    if not client_id or len(client_id) > MAX_CLIENT_ID:
        return
    table[client_id] = disconnect
    table.move_to_end(client_id)
    if len(table) > MAX_CLIENTS:
        table.popitem(last=False)
