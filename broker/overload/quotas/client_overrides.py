# The limits of single clients that an administrator has set (overrides.py), applied to this worker.
#
# Every worker knows all limits, so a limit holds for its client wherever that client connects. A limit ends by itself:
# quotas and protection look at its end. The message that takes a limit away later only cleans up.
from collections.abc import Callable
from typing import Any, cast

from broker.overload.client import ProtectedClient
from broker.overload.protection import Protection
from broker.overload.quotas.overrides import limit_from


class ClientOverrides:
    def __init__(
        self,
        protection: Protection,
        find: Callable[[str], ProtectedClient | None],
        clock: Callable[[], float],
    ) -> None:
        """*find*: returns the client of an id, if it is connected to this worker."""
        self._protection = protection
        self._find = find
        self._clock = clock

    def change(self, holding: list[dict[str, Any]], over: list[str]) -> None:
        """Apply the limits *holding*, each as `Limit.described()` and with `until`, and end those of the ids *over*."""
        limits = self._protection.limits
        for facts in holding:
            limit = limit_from(facts, cast(float, facts["until"]))
            limits[limit.client_id] = limit
            self._apply(limit.client_id)
        for client_id in over:
            limits.pop(client_id, None)
            self._apply(client_id)

    def _apply(self, client_id: str) -> None:
        client = self._find(client_id)
        if client is not None:
            self._protection.limit_again(client, self._clock())
