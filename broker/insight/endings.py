# Endings: how the connections of clients ended, for whoever asks why one is not there.
#
# What ended and what was refused are remembered apart, as anybody may send a CONNECT in another's name: that neither
# hides how the client itself went, nor pushes it out. Both are bounded, the latest of each are kept.
from collections import OrderedDict
from typing import Final

from broker.reasons import CloseReason

REMEMBERED: Final = 4096  # clients, of each kind; of about 500 bytes
LONGEST_ID: Final = 1024  # characters: longer ids are not remembered, or they would cost megabytes
LONGEST_DETAIL: Final = 200  # characters


class Ending:
    def __init__(self, reason: CloseReason, detail: str, address: str, at: float) -> None:
        self.reason = reason
        self.detail = detail[:LONGEST_DETAIL]
        self.address = address
        self.at = at
        self.undelivered = 0  # messages that waited for its client when the session ended


class Endings:
    def __init__(self) -> None:
        self._ended: OrderedDict[str, Ending] = OrderedDict()  # who ended longest ago stands first
        self._refused: OrderedDict[str, Ending] = OrderedDict()

    def note(self, client_id: str, ending: Ending, refused: bool) -> None:
        """A connection of *client_id* ended, or was *refused*; "": it never said who it is."""
        if not client_id or len(client_id) > LONGEST_ID:
            return
        known = self._refused if refused else self._ended
        known[client_id] = ending
        known.move_to_end(client_id)
        if len(known) > REMEMBERED:
            known.popitem(last=False)

    def lose(self, client_id: str, messages: int) -> None:
        """The session of *client_id* ended, perhaps long after its connection, and so many messages with it."""
        ending = self._ended.get(client_id)
        if ending is not None:
            ending.undelivered = messages

    def ended(self, client_id: str) -> Ending | None:
        """How its last connection ended that had a session."""
        return self._ended.get(client_id)

    def refused(self, client_id: str) -> Ending | None:
        """Why the last CONNECT in its name was refused."""
        return self._refused.get(client_id)

    def statistics(self) -> tuple[int, int]:
        """(clients whose end is remembered, those whose refusal is)."""
        return len(self._ended), len(self._refused)
