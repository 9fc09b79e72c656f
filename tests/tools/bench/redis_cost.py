# What a command to Redis costs a worker: python -m tests.tools.bench.redis_cost [SOCKET]
#
# CPU of this process for one command, packed, sent, answered and given to its callback, with 1, 10 and 100 commands in
# a tick, on the loop of the tests and not the reactor; and for a claim. Needs a server on SOCKET, or finds one.
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from broker.session.principal import ANONYMOUS
from broker.store.redis.address import RedisAddress
from broker.store.redis.connection import packed
from broker.store.redis.pipeline import CallbackCommand
from broker.version import form
from tests.cluster.shard import Shard
from tests.redis_servers import SERVERS, RunningRedis
from tests.store.loop import Loop

SECONDS: Final = 2.0


def main() -> None:
    if len(sys.argv) > 1:
        measure(RedisAddress(path=sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        server = RunningRedis(SERVERS[-1], Path(folder))
        try:
            measure(server.address)
        finally:
            server.end()


def measure(address: RedisAddress) -> None:
    loop = Loop()
    shard = Shard(loop, address)
    shard.loop.ready(shard.commands)
    answered = 0

    def count(*_: object) -> None:
        nonlocal answered
        answered += 1

    def get() -> None:
        shard.commands.submit(CallbackCommand(packed("GET", "key"), 5.0, count), loop.now())

    def claim() -> None:
        shard.registry.claim(f"client{answered % 1000}", ANONYMOUS, True, b"", count, loop.now())

    print(f"microseconds of CPU a command, {form()}")
    for name, ask in (("GET", get), ("claim", claim)):
        for pipelined in (1, 10, 100):
            print(f"{name:6} {pipelined:4} in a tick {cost(loop, ask, pipelined, lambda: answered):6.2f}")
    loop.close()


def cost(loop: Loop, ask: Callable[[], None], pipelined: int, answered: Callable[[], int]) -> float:
    """Microseconds of this process' CPU for each *ask*."""
    began, first = time.process_time(), answered()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        wanted = answered() + pipelined
        for _ in range(pipelined):
            ask()
        while answered() < wanted:
            loop.turn()
    return (time.process_time() - began) / (answered() - first) * 1e6


if __name__ == "__main__":
    main()
