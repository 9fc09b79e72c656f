# MQTT.js, in Node and in a browser: each of our listeners is one of its clients.
import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from tests.system.addresses import Address
from tests.system.processes import PATIENCE
from tests.system.programs.interface import SESSION_SECONDS, SILENT, NothingCame, Received, Said, Wish
from tests.system.programs.javascript_hosts import Browser, Host, Node

NEWEST: Final = 5
FIRST_WORDS: Final = 30.0  # seconds: a browser that starts for the first time on a busy machine is slow


class Lead:
    """One host, started when it is first needed: commands and answers, and the mailboxes of its clients."""

    def __init__(self, kind: Callable[[Callable[[dict[str, Any]], None]], Host]) -> None:
        self._kind = kind
        self._host: Host | None = None
        self._numbers = itertools.count(1)
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._mail: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._one_at_a_time = threading.Lock()

    def new_client(self) -> int:
        client = next(self._numbers)
        self._mail[client] = queue.Queue()
        return client

    def order(self, act: str, client: int, **details: object) -> None:
        """Have the driver do this. Raises AssertionError with its words if it cannot."""
        with self._one_at_a_time:
            if self._host is None:
                self._host = self._kind(self._hear)
            call = next(self._numbers)
            self._host.send({"call": call, "client": client, "act": act, **details})
            answer = self._answers.get(timeout=FIRST_WORDS)
        assert {"call": call, "failure": None} == answer, answer

    def next_mail(self, client: int, patience: float) -> dict[str, Any]:
        return self._mail[client].get(timeout=patience)

    def close(self) -> None:
        if self._host is not None:
            self._host.close()
            self._host = None

    def _hear(self, said: dict[str, Any]) -> None:
        if "call" in said:
            self._answers.put(said)
        else:
            self._mail[said["client"]].put(said)


NODE: Final = Lead(Node)
BROWSER: Final = Lead(Browser)


class JavaScriptListener:
    def __init__(self, lead: Lead, client: int) -> None:
        self.ended = False
        self._lead = lead
        self._client = client

    def take(self, patience: float = PATIENCE) -> Received:
        try:
            message = self._lead.next_mail(self._client, patience)["message"]
        except queue.Empty:
            raise NothingCame from None
        said = what_it_says(message["told"], bytes.fromhex(message["correlation"]))
        return Received(message["topic"], bytes.fromhex(message["payload"]), message["qos"], message["retain"], said)

    def farewell(self) -> int:
        code: int = self._lead.next_mail(self._client, PATIENCE)["farewell"]
        return code

    def leave(self) -> None:
        self._end("leave")

    def die(self) -> None:
        self._end("die")

    def _end(self, how: str) -> None:
        self.ended = True
        self._lead.order(how, self._client)


class JavaScript:
    def __init__(self, lead: Lead, version: int) -> None:
        self._lead = lead
        self._version = version

    def listen(self, address: Address, topic_filter: str, wish: Wish) -> JavaScriptListener:
        client = self._connect(address, wish)
        properties = {"subscriptionIdentifier": wish.identifier} if wish.identifier else {}
        options = {"qos": wish.qos, "properties": properties}
        self._lead.order("subscribe", client, filter=topic_filter, options=options)
        return JavaScriptListener(self._lead, client)

    def publish(
        self,
        address: Address,
        topic: str,
        payloads: Sequence[bytes],
        qos: int = 0,
        *,
        retain: bool = False,
        said: Said = SILENT,
    ) -> None:
        client = self._connect(address, Wish(), autoAssignTopicAlias=bool(said.alias))
        options = {"qos": qos, "retain": retain, "properties": publication(said)}
        texts = [payload.decode() for payload in payloads]
        self._lead.order("publish", client, topic=topic, payloads=texts, options=options)
        self._lead.order("leave", client)

    def _connect(self, address: Address, wish: Wish, **more: object) -> int:
        client = self._lead.new_client()
        options: dict[str, object] = {
            "protocolVersion": self._version,
            "reconnectPeriod": 0,
            "clean": not wish.session,
            "connectTimeout": PATIENCE * 1000,
            **more,
        }
        if wish.session:
            options["clientId"] = wish.session
        if wish.will is not None:
            options["will"] = {"topic": wish.will.topic, "payload": wish.will.payload.decode(), "qos": 1}
        if self._version == NEWEST:
            options["properties"] = {
                **({"sessionExpiryInterval": SESSION_SECONDS} if wish.session else {}),
                **({"topicAliasMaximum": wish.aliases} if wish.aliases else {}),
            }
        if address.encrypted:
            options["ca"] = address.authority.read_text()
        self._lead.order("connect", client, url=address.url(), options=options)
        return client


def publication(said: Said) -> dict[str, object]:
    """As MQTT.js names it. It sets the alias itself, one for each topic."""
    user: dict[str, list[str]] = {}
    for key, value in said.user:
        user.setdefault(key, []).append(value)
    named = {
        "contentType": said.content_type,
        "responseTopic": said.response_topic,
        "correlationData": said.correlation.decode(),
        "userProperties": user,
        "messageExpiryInterval": said.expiry,
    }
    return {name: value for name, value in named.items() if value}


def what_it_says(told: dict[str, Any], correlation: bytes) -> Said:
    user = []
    for key, values in told.get("userProperties", {}).items():
        user += [(key, value) for value in ([values] if isinstance(values, str) else values)]
    identifiers = told.get("subscriptionIdentifier", [])
    return Said(
        told.get("contentType", ""),
        told.get("responseTopic", ""),
        correlation,
        tuple(user),
        told.get("messageExpiryInterval", 0),
        told.get("topicAlias", 0),
        tuple(identifiers if isinstance(identifiers, list) else [identifiers]),
    )
