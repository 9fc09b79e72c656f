# A Lua script in Redis, called by its digest: 4 KiB of text need not be sent with each call.
import hashlib
from typing import Final

from broker.reasons import StoreFailure
from broker.store.redis.connection import packed
from broker.store.redis.pipeline import Command, CommandPipeline

TIMEOUT: Final = 5.0  # seconds; nothing waits for it


class Script:
    def __init__(self, commands: CommandPipeline, text: bytes) -> None:
        self._commands = commands
        self._text = text
        self._digest = hashlib.sha1(text, usedforsecurity=False).hexdigest()

    def load(self, now: float) -> None:
        """Send the script to Redis, ahead of the calls that follow."""
        self._commands.submit(_Load(packed("SCRIPT", "LOAD", self._text), TIMEOUT), now)

    def failed(self, failure: StoreFailure, now: float) -> None:
        """A call of the script has failed: send the script again if Redis does not have it."""
        if failure is StoreFailure.SCRIPT_UNKNOWN:
            self.load(now)

    def call(self, keys: list[bytes], words: list[str | bytes | int]) -> bytes:
        """The command that calls the script."""
        return packed("EVALSHA", self._digest, len(keys), *keys, *words)


class _Load(Command):
    def replied(self, reply: object, now: float) -> None:
        pass

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        pass  # the next call fails as SCRIPT_UNKNOWN, which loads the script again
