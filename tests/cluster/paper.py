# A wire whose other end is the test: it reads what was written, and writes what a server would.
from typing import Final

from broker.store.redis.address import RedisAddress
from broker.store.redis.connection import RedisConnection
from broker.store.redis.pipeline import CommandPipeline
from tests.store.loop import Loop

HANDSHAKE_REPLIES: Final = b"+OK\r\n+PONG\r\n"


class Paper:
    def __init__(self) -> None:
        self.written = b""
        self.waiting = False  # bytes have come that the worker has not received

    def open(self, address: RedisAddress, line: RedisConnection) -> str:
        return ""

    def write(self, data: bytes) -> None:
        self.written += data

    def unread(self) -> bool:
        return self.waiting

    def close(self) -> None:
        self.written = b""


def on_paper(loop: Loop) -> tuple[CommandPipeline, Paper]:
    """A line that was started at 0.0, and is not greeted yet."""
    paper = Paper()
    commands = CommandPipeline(paper, RedisAddress(path="/paper"), "test", loop.log)
    commands.start(0.0)
    return commands, paper
