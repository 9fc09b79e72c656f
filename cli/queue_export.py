# What waits for a client as JSON lines, for `weir queue export` and the dashboard: one request for each page of it.
#
# Nothing is taken out of the queue. A queue may have gigabytes; no more than a page is in memory.
import base64
import json
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from cli.control_client import PATIENCE, ControlClient

if TYPE_CHECKING:
    from supervisor.folder import NodeFolder

NOWHERE: Final = -1  # no worker
KEYS: Final = ("topic", "payload", "qos", "retain", "expires_in", "age")


def exported_pages(node: "NodeFolder", client: str, patience: float = PATIENCE) -> Iterator[list[dict[str, Any]]]:
    """Yield the messages that wait for *client*, page by page: at least one page, which may be empty. RequestFailed.

    *patience*: seconds for each page. A message of more than 8 MiB has the payload None.
    """
    cursor: dict[str, int] = {"after": 0, "last": 0, "worker": NOWHERE}
    while True:
        with closing(ControlClient(node, patience)) as control:
            answer = control.try_request("queue_page", client=client, **cursor)
        yield [_exported(message) for message in answer["messages"]]
        if not answer["next"]:
            return
        cursor = {"after": answer["next"], "last": answer["last"], "worker": answer["worker"]}


def lines(messages: list[dict[str, Any]]) -> bytes:
    """Return *messages* as JSON lines."""
    return b"".join([json.dumps(message).encode() + b"\n" for message in messages])


def _exported(message: dict[str, Any]) -> dict[str, Any]:
    properties = _properties(base64.b64decode(message["properties"]))
    return {**{key: message[key] for key in KEYS}, "properties": properties}


def _properties(section: bytes) -> dict[str, Any]:
    """The properties of a message by their names in MQTT; correlation data in base64."""
    from broker.mqtt import properties as known
    from broker.mqtt.fields import encode_length
    from broker.mqtt.packets import PUBLISH

    names = {
        known.PAYLOAD_FORMAT_INDICATOR: "payload_format_indicator",
        known.CONTENT_TYPE: "content_type",
        known.RESPONSE_TOPIC: "response_topic",
        known.CORRELATION_DATA: "correlation_data",
        known.SUBSCRIPTION_IDENTIFIER: "subscription_identifiers",
        known.USER_PROPERTY: "user_properties",
    }
    data = encode_length(len(section)) + section
    found, _ = known.decode_properties(data, 0, len(data), PUBLISH)
    return {
        names[identifier]: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for identifier, value in found.items()
    }
