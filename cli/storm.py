# A storm of connects, as after an outage: many clients connect at once, stay for a moment, and leave.
#
# `weir bench` expects every client to be accepted; here refusals are part of the load.
from typing import Final

import trio

from broker.mqtt.encode import encode
from broker.mqtt.packets import V5, Connect, Disconnect

STAY: Final = 1.0  # seconds that an accepted client stays connected
PATIENCE: Final = 15.0  # seconds that a client waits for its CONNACK
AT_ONCE: Final = 800  # connections: below the descriptor limit of any system
TICK: Final = 0.05  # seconds


def storm(port: int, seconds: float, rate: float) -> None:
    """Open *rate* connections a second to this machine for *seconds*; return when the last one is closed.

    Ctrl-C raises a plain KeyboardInterrupt instead of an exception group.
    """
    try:
        trio.run(_storm, port, seconds, rate, restrict_keyboard_interrupt_to_checkpoints=True)
    except BaseExceptionGroup as several:
        if several.subgroup(KeyboardInterrupt) is None:
            raise
        raise KeyboardInterrupt from None


async def _storm(port: int, seconds: float, rate: float) -> None:
    room = trio.CapacityLimiter(AT_ONCE)
    deadline = trio.current_time() + seconds
    number = 0
    async with trio.open_nursery() as clients:
        while trio.current_time() < deadline:
            for _ in range(max(1, round(rate * TICK))):
                if room.available_tokens:
                    number += 1
                    clients.start_soon(_connect, port, f"storm-{number}", room)
                    await trio.lowlevel.checkpoint()
            await trio.sleep(TICK)


async def _connect(port: int, name: str, room: trio.CapacityLimiter) -> None:
    async with room:
        try:
            with trio.move_on_after(PATIENCE):
                async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                    await stream.send_all(encode(Connect(client_id=name, version=V5, clean_start=True), V5))
                    if await stream.receive_some(100):
                        await trio.sleep(STAY)
                        await stream.send_all(encode(Disconnect(), V5))
        except (OSError, trio.BrokenResourceError):
            pass  # the connection was refused
