# `weir pub` and `weir sub`, with the option names of mosquitto_pub and mosquitto_sub.
import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli.broker_options import (
    LONGEST,
    CaFile,
    Insecure,
    Password,
    Tls,
    User,
    Version,
    connect_string,
    endpoint_of,
    level_of,
)
from cli.options import GONE, UNREACHABLE, refuse

if TYPE_CHECKING:
    from broker.mqtt.packets import Publish
    from cli.conversation import Conversation
    from cli.endpoint import Endpoint

STANDARD_INPUT: Final = "-"
READ: Final = 64 * 1024
LARGEST: Final = (1 << 28) - 1 - LONGEST - 5  # bytes of a payload that fits into a packet with the longest topic
NO: Final = 0x80  # SUBACK codes from here on mean that the filter was refused

Host = Annotated[
    str, typer.Option("--host", "-h", metavar="HOST[:PORT]", help="Broker address, or a URL such as ws://HOST/PATH.")
]
Port = Annotated[
    int | None,
    typer.Option("--port", "-p", min=1, max=65535, metavar="PORT", show_default="1883; TLS: 8883; ws: 8083; wss: 8084"),
]
Qos = Annotated[int, typer.Option("--qos", "-q", min=0, max=2, help="Quality of service.")]
ClientId = Annotated[
    str | None, typer.Option("--id", "-i", metavar="ID", help="Client id.", show_default="a random one")
]


class _OutputClosed(Exception):
    """The reader of the standard output has closed it."""


def pub(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    message: Annotated[
        str | None,
        typer.Argument(
            metavar="MESSAGE", help="The payload; - publishes each line of the standard input.", show_default=False
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Publish the content of FILE as one message.")
    ] = None,
    qos: Qos = 0,
    retain: Annotated[bool, typer.Option("--retain", "-r", help="Publish a retained message.")] = False,
    host: Host = "localhost",
    port: Port = None,
    user: User = None,
    password: Password = None,
    client_id: ClientId = None,
    version: Version = "5",
    tls: Tls = False,
    cafile: CaFile = None,
    insecure: Insecure = False,
) -> None:
    """Publish a message to TOPIC.

    Exit codes: 0 acknowledged by the broker (QoS 0: sent),
    2 invalid request, 4 no broker there, or it refused,
    5 connection lost.
    """
    from broker.mqtt.packets import Publish
    from broker.mqtt.topics import check_topic
    from cli.conversation import TROUBLE

    _check(check_topic, topic)
    if (message is None) == (file is None):
        refuse("nothing to publish: give one of MESSAGE, - for the lines of the standard input, or --file FILE.")
    payload = b"" if message is None else _utf8(message)
    if file is not None:
        try:
            payload = file.read_bytes()
        except OSError as error:
            refuse(f"cannot read --file {file}: {error.strerror}.")
    level = level_of(version)
    endpoint = endpoint_of(host, port, tls, cafile, insecure)
    conversation = _converse(endpoint, level, client_id, user, password)

    def send(data: bytes) -> None:
        if len(data) > LARGEST:
            refuse(f"a payload of {len(data)} bytes is too large: MQTT allows at most 256 MiB for topic and payload.")
        conversation.publish(Publish(_utf8(topic), data, qos, retain))

    try:
        if message == STANDARD_INPUT:
            for line in _lines(conversation):
                send(line)
        else:
            send(payload)
    except KeyboardInterrupt:
        pass  # what was published is published
    except TROUBLE as error:
        _report(endpoint, error)
    conversation.close()


def sub(
    filters: Annotated[list[str], typer.Argument(metavar="FILTER...")],
    qos: Qos = 0,
    count: Annotated[
        int,
        typer.Option("--count", "-c", "-C", min=0, metavar="N", help="Exit after N messages.", show_default="never"),
    ] = 0,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print the topic before each message.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON line per message; a payload that is not UTF-8 is in base64.")
    ] = False,
    host: Host = "localhost",
    port: Port = None,
    user: User = None,
    password: Password = None,
    client_id: ClientId = None,
    version: Version = "5",
    tls: Tls = False,
    cafile: CaFile = None,
    insecure: Insecure = False,
) -> None:
    """Subscribe, and print messages until Ctrl-C.

    Exit codes: 0 after Ctrl-C or --count, 2 invalid request,
    4 no broker there, or it refused, 5 connection lost.
    """
    from broker.mqtt.topics import check_filter
    from cli.conversation import TROUBLE

    for filter in filters:
        _check(check_filter, filter)
    level = level_of(version)
    endpoint = endpoint_of(host, port, tls, cafile, insecure)
    conversation = _converse(endpoint, level, client_id, user, password)
    shape = _json_line if as_json else _topic_and_payload if verbose else _payload
    try:
        codes = conversation.subscribe([_utf8(filter) for filter in filters], qos)
        for filter, code in zip(filters, codes, strict=False):
            if code >= NO:
                _refused_filter(endpoint, filter, code)
        _print(conversation, shape, count)
    except KeyboardInterrupt:
        pass
    except _OutputClosed:
        # Otherwise Python reports an error when it flushes the output at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except TROUBLE as error:
        _report(endpoint, error)
    conversation.close()


def _print(conversation: "Conversation", shape: "Callable[[Publish], bytes]", count: int) -> None:
    """Print messages: *count* of them, or without end if it is 0."""
    out = sys.stdout.buffer
    printed = 0
    while not count or printed < count:
        message = conversation.receive()
        if message is None:
            continue
        try:
            out.write(shape(message) + b"\n")
            out.flush()
        except BrokenPipeError:
            raise _OutputClosed from None
        conversation.acknowledge(message)  # only now, so that a message that was not printed is not lost
        printed += 1


def _payload(message: "Publish") -> bytes:
    return message.payload


def _topic_and_payload(message: "Publish") -> bytes:
    return message.topic + b" " + message.payload


def _json_line(message: "Publish") -> bytes:
    line: dict[str, object] = {"topic": message.topic.decode(), "qos": message.qos, "retain": message.retain}
    try:
        line["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        import base64

        line["payload_base64"] = base64.b64encode(message.payload).decode()
    return json.dumps(line, ensure_ascii=False).encode()


def _lines(conversation: "Conversation") -> Iterator[bytes]:
    """The lines of the standard input; the last one may lack a newline. The connection is kept alive meanwhile."""
    rest = b""
    while True:
        conversation.receive(sys.stdin.fileno())
        data = os.read(sys.stdin.fileno(), READ)
        *lines, rest = (rest + data).split(b"\n")
        yield from lines
        if not data:
            if rest:
                yield rest
            return


def _converse(
    endpoint: "Endpoint", level: int, client_id: str | None, user: str | None, password: str | None
) -> "Conversation":
    """Connect. A failure ends the command."""
    from broker.mqtt.packets import Connect
    from cli.conversation import KEEP_ALIVE, TROUBLE, Conversation

    name = client_id if client_id is not None else f"weir-{secrets.token_hex(4)}"
    for option, text in (("--id", name), ("--user", user), ("--password", password)):
        connect_string(option, text)
    secret = None if password is None else password.encode()
    connect = Connect(level, name, keep_alive=KEEP_ALIVE, user_name=user, password=secret)
    try:
        return Conversation(endpoint, connect)
    except TROUBLE as error:
        refuse(endpoint.explain(error), UNREACHABLE)


def _check(check: Callable[[bytes], None], text: str) -> None:
    """End the command if *text* is not a valid topic (or filter, by *check*)."""
    from broker.reasons import ProtocolError

    try:
        check(_utf8(text))
        if len(_utf8(text)) > LONGEST:
            refuse(f"a topic of {len(_utf8(text))} bytes is too long: MQTT allows at most {LONGEST}.")
    except ProtocolError as error:
        refuse(f"{text!r} is not valid: {error.detail}.")


def _utf8(text: str) -> bytes:
    """The bytes of a command line argument; they need not be UTF-8."""
    return text.encode(errors="surrogateescape")


def _refused_filter(endpoint: "Endpoint", filter: str, code: int) -> None:
    from cli.reason_words import in_words

    refuse(f"{endpoint} refused {filter!r}: {in_words('SUBACK', code)}", UNREACHABLE)


def _report(endpoint: "Endpoint", error: Exception) -> None:
    """End the command because of *error* on an open connection."""
    from cli.load.client import Refused

    if isinstance(error, Refused) and error.kind != "DISCONNECT":
        refuse(endpoint.explain(error), UNREACHABLE)
    refuse(endpoint.explain(error, talking=True), GONE)
