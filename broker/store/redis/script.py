# A Lua script that Redis has: called by its digest, so that 4 KiB of text do not travel with each claim.
import hashlib
from typing import Final

from broker.reasons import StoreFailure
from broker.store.redis.connection import packed
from broker.store.redis.pipeline import Command, CommandPipeline

PATIENCE: Final = 5.0  # seconds; nobody waits for it, and what is called after it waits for itself


class Script:
    def __init__(self, commands: CommandPipeline, text: bytes) -> None:
        self._commands = commands
        self._text = text
        self._digest = hashlib.sha1(text, usedforsecurity=False).hexdigest()

    def load(self, now: float) -> None:
        """Have Redis know it, ahead of the calls that come after this."""
        self._commands.ask(_Load(packed("SCRIPT", "LOAD", self._text), PATIENCE), now)

    def failed(self, failure: StoreFailure, now: float) -> None:
        """A call of it failed; the next one may not, if all there was is that Redis had forgotten it."""
        if failure is StoreFailure.SCRIPT_UNKNOWN:
            self.load(now)

    def call(self, keys: list[bytes], words: list[str | bytes | int]) -> bytes:
        """The command that calls it."""
        return packed("EVALSHA", self._digest, len(keys), *keys, *words)


class _Load(Command):
    def replied(self, reply: object, now: float) -> None:
        pass

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        pass  # the calls will fail as SCRIPT_UNKNOWN, and load it again
