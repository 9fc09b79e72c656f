# The control socket: how `weir status` and the others talk to a node that runs.
#
# One request a connection: a JSON line {"weir": 1, "command": NAME, ...}, answered by a JSON line {"ok": true,
# "result": ...} or {"ok": false, "error": SENTENCE}. Who may open the socket (its owner, and root) may do all of it.
# What is malformed, unknown or too large is answered by what is wrong with it, and changes nothing.
import json
import os
import pwd
import socket
import struct
from typing import Any, Final

import structlog
import trio

from supervisor.commands import Commands, Refused
from supervisor.folder import NodeFolder

VERSION: Final = 1  # of the request's format
LONGEST: Final = 64 * 1024  # bytes of a request
PATIENCE: Final = 5.0  # seconds to say what is wanted, and to take an answer
BACKLOG: Final = 64
AT_ONCE: Final = 32  # connections; further ones wait
CREDENTIALS: Final = struct.Struct("3i")  # process, user, group of whoever connected (SO_PEERCRED, unix(7))


def bind_control(folder: NodeFolder) -> socket.socket:
    """The socket, listening. OSError."""
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        control.bind(os.fspath(folder.control))
    finally:
        os.umask(before)
    control.listen(BACKLOG)
    return control


async def serve_control(control: socket.socket, commands: Commands) -> None:
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(control))
    room = trio.CapacityLimiter(AT_ONCE)

    async def serve(stream: trio.SocketStream) -> None:
        async with stream, room:
            try:
                await _serve_one(stream, commands)
            except (trio.BrokenResourceError, trio.TooSlowError):
                pass  # who asked has gone

    await trio.serve_listeners(serve, [listener])


async def _serve_one(stream: trio.SocketStream, commands: Commands) -> None:
    command = ""
    try:
        with trio.move_on_after(PATIENCE) as asking:
            line = await _line(stream)
        if asking.cancelled_caught:
            raise Refused(f"No request came within {PATIENCE:g} seconds.")
        command, arguments = parse(line)
        answer: dict[str, Any] = {"ok": True, "result": await commands.do(command, arguments, asker(stream))}
    except Refused as error:
        answer = {"ok": False, "error": str(error)}
    except trio.BrokenResourceError:
        raise
    except Exception as error:  # our mistake: it costs this request and not the node
        structlog.get_logger().error("control_request_failed", exc_info=error)
        answer = {"ok": False, "error": "The node failed on this; its log says how."}
    with trio.fail_after(PATIENCE):
        await stream.send_all(json.dumps(answer).encode() + b"\n")
    if answer["ok"] and command == "stop":
        await trio.sleep_forever()  # who asked sees by the end of the connection that the node has ended


def asker(stream: trio.SocketStream) -> str:
    """The user at the other end, for the log: "jo (uid 1000)"."""
    _, user, _ = CREDENTIALS.unpack(stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    try:
        name = pwd.getpwuid(user).pw_name.encode(errors="replace").decode()  # it may be of any bytes
    except KeyError:
        return f"uid {user}"
    return f"{name} (uid {user})"


async def _line(stream: trio.SocketStream) -> bytes:
    data = b""
    while b"\n" not in data:
        if len(data) > LONGEST:
            raise Refused(f"A request may have {LONGEST} bytes, and this one has more.")
        more = await stream.receive_some(LONGEST)
        if not more:
            break
        data += more
    line, _, rest = data.partition(b"\n")
    if len(line) > LONGEST:
        raise Refused(f"A request may have {LONGEST} bytes, and this one has more.")
    if rest:
        raise Refused("A connection has one request, and there is something behind this one.")
    return line


def parse(line: bytes) -> tuple[str, dict[str, Any]]:
    """The command and its arguments. Refused."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Refused(f"The request is not JSON: {error}.") from None
    if not isinstance(found, dict):
        raise Refused("The request is no JSON object.")
    version = found.pop("weir", None)
    if type(version) is not int or version != VERSION:
        raise Refused(f"The request is of version {version!r}, and this node speaks version {VERSION}.")
    command = found.pop("command", None)
    if not isinstance(command, str):
        raise Refused("The request names no command.")
    return command, found
