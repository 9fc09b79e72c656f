# `weir pub` and `weir sub`: a first try without other tools; options are named as those of mosquitto_pub and _sub.
import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli.connecting import (
    LONGEST,
    CaFile,
    Insecure,
    Password,
    Tls,
    User,
    Version,
    endpoint_of,
    level_of,
    sayable,
)
from cli.options import GONE, UNREACHABLE, refuse

if TYPE_CHECKING:
    from broker.mqtt.packets import Publish
    from cli.conversation import Conversation
    from cli.endpoint import Endpoint

STANDARD_INPUT: Final = "-"
READ: Final = 64 * 1024
LARGEST: Final = (1 << 28) - 1 - LONGEST - 5  # bytes of a message: what is left of a packet in any case
NO: Final = 0x80  # SUBACK codes from here on are refusals

Host = Annotated[str, typer.Option("--host", "-h", metavar="HOST[:PORT]", help="The broker, or a URL: ws://HOST/PATH.")]
Port = Annotated[
    int | None,
    typer.Option("--port", "-p", min=1, max=65535, metavar="PORT", show_default="1883; TLS: 8883; ws: 8083; wss: 8084"),
]
Qos = Annotated[int, typer.Option("--qos", "-q", min=0, max=2, help="Quality of service.")]
ClientId = Annotated[
    str | None, typer.Option("--id", "-i", metavar="ID", help="Client id.", show_default="a random one")
]


class _Unread(Exception):
    """Who read our output has seen enough."""


def pub(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    message: Annotated[
        str | None, typer.Argument(metavar="MESSAGE", help="- publishes every line of the input.", show_default=False)
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Publish what is in FILE, as one message.")
    ] = None,
    qos: Qos = 0,
    retain: Annotated[bool, typer.Option("--retain", "-r", help="Have the broker keep it for those to come.")] = False,
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

    Exit codes: 0 when the broker has it (with QoS 0: when it is sent),
    2 when that cannot be done, 4 when no broker is there or it refuses,
    5 when it went away meanwhile.
    """
    from broker.mqtt.packets import Publish
    from broker.mqtt.topics import check_topic
    from cli.conversation import TROUBLE

    _check(check_topic, topic)
    if (message is None) == (file is None):
        refuse("nothing to publish: give one MESSAGE, - for the lines of the input, or --file FILE.")
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
            refuse(f"a message of {len(data)} bytes cannot be: MQTT has at most 256 MiB for topic and payload.")
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
        typer.Option(
            "--count", "-c", "-C", min=0, metavar="N", help="End after so many messages.", show_default="never"
        ),
    ] = 0,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print the topic in front of each message.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON for each message; what is not UTF-8 is in base64.")
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
    """Print the messages that match a FILTER as they come, until Ctrl-C.

    Exit codes: 0 after Ctrl-C or --count, 2 when that cannot be done,
    4 when no broker is there or it refuses, 5 when it went away meanwhile.
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
    except _Unread:
        # Python would complain when it closes its output at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except TROUBLE as error:
        _report(endpoint, error)
    conversation.close()


def _print(conversation: "Conversation", shape: "Callable[[Publish], bytes]", count: int) -> None:
    """Print messages, *count* of them if it is not 0."""
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
            raise _Unread from None
        conversation.acknowledge(message)  # only now: what we did not print is not lost
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
    """The lines of the standard input, while the connection is kept alive; the last one may have no end."""
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
    """A connection that is up; else the command ends with a sentence."""
    from broker.mqtt.packets import Connect
    from cli.conversation import KEEP_ALIVE, TROUBLE, Conversation

    name = client_id if client_id is not None else f"weir-{secrets.token_hex(4)}"
    for option, text in (("--id", name), ("--user", user), ("--password", password)):
        sayable(option, text)
    secret = None if password is None else password.encode()
    connect = Connect(level, name, keep_alive=KEEP_ALIVE, user_name=user, password=secret)
    try:
        return Conversation(endpoint, connect)
    except TROUBLE as error:
        refuse(endpoint.explain(error), UNREACHABLE)


def _check(check: Callable[[bytes], None], text: str) -> None:
    """*check* is of topics or of filters."""
    from broker.reasons import ProtocolError

    try:
        check(_utf8(text))
        if len(_utf8(text)) > LONGEST:
            refuse(f"a topic of {len(_utf8(text))} bytes cannot be: MQTT has at most {LONGEST}.")
    except ProtocolError as error:
        refuse(f"{text!r} cannot be: {error.detail}.")


def _utf8(text: str) -> bytes:
    """The bytes of an argument as they were typed; whether they are UTF-8 is for others to judge."""
    return text.encode(errors="surrogateescape")


def _refused_filter(endpoint: "Endpoint", filter: str, code: int) -> None:
    from cli.reason_words import in_words

    refuse(f"{endpoint} refused {filter!r}: {in_words('SUBACK', code)}", UNREACHABLE)


def _report(endpoint: "Endpoint", error: Exception) -> None:
    """A conversation that has begun ended in *error*: the command ends with a sentence."""
    from cli.load.client import Refused

    if isinstance(error, Refused) and error.kind != "DISCONNECT":
        refuse(endpoint.explain(error), UNREACHABLE)
    refuse(endpoint.explain(error, talking=True), GONE)
