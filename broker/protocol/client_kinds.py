# The kind of a client: DEVICE, or APPLICATION if a rule of the configuration says so (config/applications.py).
#
# It is decided with each CONNECT: kind_changes.py says what becomes of a session that was of the other kind. A session
# that ends with its connection has nothing that could wait in a log.
from collections.abc import Sequence
from typing import Final, cast

from broker.config.applications import ApplicationRule
from broker.log import Log
from broker.mqtt.packets import Connect
from broker.mqtt.properties import USER_PROPERTY
from broker.session.session import Session
from broker.store.durable.application_queue import ApplicationQueue

APPLICATION: Final = "application"
DEVICE: Final = "device"
NON_PERSISTENT: Final = "non_persistent"
PARTING: Final = (
    "parting"  # a DEVICE by its last CONNECT, and served as APPLICATION until it has been sent all of its log
)
LOGGED: Final = 1000  # client ids that are remembered, so that each is logged once


class ClientKinds:
    def __init__(self, rules: Sequence[ApplicationRule], most: int, log: Log) -> None:
        """*most*: sessions of APPLICATION clients that this worker may have."""
        self.most: Final = most
        self._rules = rules
        self._log = log
        self._logged: dict[str, None] = {}

    def of(self, client_id: str, user: str | None, listener: str, packet: Connect, expiry: int) -> bool:
        """Whether a client whose session has *expiry*, in seconds, is an APPLICATION client."""
        if not self._rules:
            return False
        properties = cast(list[tuple[str, str]], packet.properties.get(USER_PROPERTY, []))
        if not any(rule.names(client_id, user, listener, properties) for rule in self._rules):
            return False
        if expiry:
            return True
        if client_id not in self._logged:
            self._logged[client_id] = None
            if len(self._logged) > LOGGED:
                del self._logged[next(iter(self._logged))]
            self._log.warning("application_not_persistent", client=client_id)
        return False


def kind_of(session: Session) -> str:
    """The kind of the client of *session*, for people."""
    storage = session.storage
    if storage is not None and storage.application:
        queue = session.queue()
        return PARTING if isinstance(queue, ApplicationQueue) and queue.parting else APPLICATION
    return DEVICE if session.expiry else NON_PERSISTENT
