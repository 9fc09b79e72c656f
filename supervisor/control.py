# The control socket: `weir status` and other commands send their requests to a running node through it.
#
# A connection carries one request, a JSON line {"weir": 1, "command": NAME, ...}. The answer is a JSON line
# {"ok": true, "result": ...} or {"ok": false, "error": SENTENCE, "found": BOOLEAN}, where `found` is false if what the
# request names does not exist. Users that may open the socket (its owner and root)
# may use every command. A malformed, unknown or too large request is answered with what is wrong, and changes nothing.
import json
import os
import pwd
import socket
import struct
from typing import Any, Final

import structlog
import trio

from supervisor.commands import Commands
from supervisor.folder import NodeFolder
from supervisor.request import NotFound, Refused, parse

LONGEST: Final = 64 * 1024  # bytes in a request
TIMEOUT: Final = 5.0  # seconds for the request to arrive, and for the answer to be read
BACKLOG: Final = 64
CONCURRENT: Final = 32  # connections; further ones wait
CREDENTIALS: Final = struct.Struct("3i")  # pid, uid and gid of the other process (SO_PEERCRED, unix(7))


def bind_control(folder: NodeFolder) -> socket.socket:
    """Make the listening socket. OSError."""
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
    room = trio.CapacityLimiter(CONCURRENT)

    async def serve(stream: trio.SocketStream) -> None:
        async with stream, room:
            try:
                await _serve_one(stream, commands)
            except (trio.BrokenResourceError, trio.TooSlowError):
                pass  # the other process has ended, or does not read

    await trio.serve_listeners(serve, [listener])


async def _serve_one(stream: trio.SocketStream, commands: Commands) -> None:
    command = ""
    try:
        with trio.move_on_after(TIMEOUT) as asking:
            line = await _read_line(stream)
        if asking.cancelled_caught:
            raise Refused(f"No request came within {TIMEOUT:g} seconds.")
        command, arguments = parse(line)
        answer: dict[str, Any] = {"ok": True, "result": await commands.do(command, arguments, user_of(stream))}
    except Refused as error:
        answer = {"ok": False, "error": str(error), "found": not isinstance(error, NotFound)}
    except trio.BrokenResourceError:
        raise
    except Exception as error:  # a bug: it costs this request, and the node goes on
        structlog.get_logger().error("control_request_failed", exc_info=error)
        answer = {"ok": False, "error": "The node failed on this; its log says how.", "found": True}
    with trio.fail_after(TIMEOUT):
        await stream.send_all(json.dumps(answer).encode() + b"\n")
    if answer["ok"] and command == "stop":
        await trio.sleep_forever()  # `weir stop` waits for the end of the connection, which is the end of the node


def user_of(stream: trio.SocketStream) -> str:
    """The user of the other process, for the log: "jo (uid 1000)"."""
    _, user, _ = CREDENTIALS.unpack(stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    try:
        name = pwd.getpwuid(user).pw_name.encode(errors="replace").decode()  # a user name may hold any bytes
    except KeyError:
        return f"uid {user}"
    return f"{name} (uid {user})"


async def _read_line(stream: trio.SocketStream) -> bytes:
    data = b""
    while b"\n" not in data:
        if len(data) > LONGEST:
            raise Refused(f"The request is longer than {LONGEST} bytes.")
        more = await stream.receive_some(LONGEST)
        if not more:
            break
        data += more
    line, _, rest = data.partition(b"\n")
    if len(line) > LONGEST:
        raise Refused(f"The request is longer than {LONGEST} bytes.")
    if rest:
        raise Refused("A connection carries one request, and more data follows this one.")
    return line
