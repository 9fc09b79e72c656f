# Wills: of each client whose worker is killed, or that breaks its connection, published once.
from itertools import count
from typing import Final

from broker.mqtt.packets import Publish, Will
from tests.tools.faults.client import Client
from tests.tools.faults.troubles import REDIS, Troubles
from tests.tools.fuzz.loop import Loop

TOPIC: Final = "wills"
REDIS_KNOWS: Final = 1.0  # seconds after which it has been told what was claimed while it was away


class Wills:
    """*mortals* clients with a will, a new one for each that is gone, and *watchers* who hear of them."""

    def __init__(self, loop: Loop, troubles: Troubles, port: int, mortals: int, watchers: int) -> None:
        self.owed: dict[str, float] = {}  # client id: when it was gone
        self.watchers: list[Client] = []
        self.mortals: list[Client] = []
        self._loop = loop
        self._port = port
        self._troubles = troubles
        self._numbers = count()
        self._heard: dict[str, dict[str, int]] = {}  # by watcher, and client id
        self._doubtful: set[str] = set()
        for number in range(watchers):
            watcher = Client(loop, port, f"watcher-{number}", filter=f"{TOPIC}/#")
            watcher.on_message = lambda packet, watcher=watcher: self._take(watcher, packet)  # type: ignore[misc]
            watcher.on_down = lambda was_up, watcher=watcher: self._watcher_down(watcher)  # type: ignore[misc]
            self.watchers.append(watcher)
            self._heard[watcher.client_id] = {}
        for _ in range(mortals):
            self._bear()

    def clients(self) -> list[Client]:
        return [*self.watchers, *self.mortals]

    def close(self) -> None:
        """They all leave, and nobody comes after them."""
        leaving, self.mortals = self.mortals, []
        for client in [*leaving, *self.watchers]:
            client.close()

    def missing(self) -> list[tuple[str, str]]:
        """(watcher, client id) of wills that were not heard."""
        return [
            (watcher.client_id, gone)
            for watcher in self.watchers
            for gone, when in self.owed.items()
            if watcher.up and watcher.since < when and gone not in self._heard[watcher.client_id]
        ]

    def finish(self) -> None:
        for watcher, gone in self.missing():
            when = self.owed[gone] - self._troubles.began
            self._troubles.fail(f"the will of {gone}, gone at {when:.2f} s, never came to {watcher}")
        for watcher, heard in self._heard.items():
            for gone, times in heard.items():
                if times > 1:
                    self._troubles.fail(f"the will of {gone} came {times} times to {watcher}")

    def _bear(self) -> None:
        name = f"mortal-{next(self._numbers)}"
        will = Will(f"{TOPIC}/{name}".encode(), name.encode(), 1)
        client = Client(self._loop, self._port, name, will=will)
        client.on_down = lambda was_up: self._gone(client, was_up)
        self.mortals.append(client)

    def _gone(self, client: Client, was_up: bool) -> None:
        if client not in self.mortals:
            return
        now = self._loop.now
        self.mortals.remove(client)
        client.close(False)
        self._loop.later(0.05, self._bear)
        if not was_up:
            return
        if not client.left and client.worker and not self._troubles.in_trouble(client.worker, now, now):
            self._troubles.fail(f"{client.client_id} lost its connection to worker {client.worker}, which was well")
        if not self._troubles.in_trouble(REDIS, client.since - REDIS_KNOWS, client.since):
            self.owed[client.client_id] = now

    def _take(self, watcher: Client, packet: Publish) -> None:
        if packet.dup:
            return
        heard = self._heard[watcher.client_id]
        gone = packet.payload.decode()
        heard[gone] = heard.get(gone, 0) + 1
        if any(one.client_id == gone and one.up for one in self.mortals):
            self._troubles.notes.append(f"the will of {gone} came before its connection ended")

    def _watcher_down(self, watcher: Client) -> None:
        self._heard[watcher.client_id] = {}
