# python -m tests.system.balancer PORT:TARGET,... ...: a load balancer for connections, as one stands before a cluster.
#
# Each connection to PORT goes to one of its TARGETs, by chance. Ends and resets are passed on, each in its direction.
import random
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import trio

HOST: Final = "127.0.0.1"
RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: close() sends a reset
SIZE: Final = 64 * 1024


async def pump(source: trio.SocketStream, sink: trio.SocketStream) -> None:
    """Pass on what *source* brings until it ends; a reset of either one becomes a reset of the other one."""
    try:
        while data := await source.receive_some(SIZE):
            await sink.send_all(data)
        await sink.send_eof()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        for stream in (source, sink):
            with suppress(OSError):  # it is closed already
                stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            await trio.aclose_forcefully(stream)


async def serve(targets: Sequence[int], client: trio.SocketStream) -> None:
    try:
        node = await trio.open_tcp_stream(HOST, random.choice(targets))
    except OSError:  # it has ended
        return
    async with client, node, trio.open_nursery() as nursery:
        nursery.start_soon(pump, client, node)
        nursery.start_soon(pump, node, client)


async def main(arguments: Sequence[str]) -> None:
    async with trio.open_nursery() as nursery:
        for argument in arguments:
            port, _, targets = argument.partition(":")
            handler = partial(serve, [int(target) for target in targets.split(",")])
            await nursery.start(partial(trio.serve_tcp, handler, int(port), host=HOST))
        print("listening", flush=True)


if __name__ == "__main__":
    trio.run(main, sys.argv[1:])
