# The inputs of a run: each follows from the run's seed and its own number, and from nothing else.
#
# So a failure is repeated with two numbers, and a million inputs need no file.
from dataclasses import dataclass
from enum import Enum, auto
from random import Random
from typing import Final

from broker.mqtt.encode import encode
from tests.tools.fuzz.conversations import VERSIONS, Conversation, connect, conversation
from tests.tools.fuzz.mutations import mutate

CORPUS: Final = 2000  # conversations that are mutated
SPREAD: Final = 1 << 40  # inputs of one seed, at most: where the numbers of the next one begin
STORM_EVERY: Final = 1000  # inputs: the first STORM of each are connections of one client id
STORM: Final = 40
SLOWEST: Final = 3.0  # seconds, about, that a slow input may take
LONGEST: Final = 40_000  # bytes of an input
LAYER_BYTES: Final = 600  # where a TLS handshake, an upgrade and the first frames are
CUT, FLIPPED, UNSOUND = 0.05, 0.15, 0.4  # shares of the inputs whose bytes on the wire end, are spoilt, or misbehave


class Parting(Enum):
    """How an input ends, if the broker does not end it first."""

    CLOSE = auto()
    RESET = auto()
    HALF_CLOSE = auto()  # and reads on until the broker has closed
    ABANDON = auto()  # nothing more, for seconds


PARTINGS: Final = [Parting.CLOSE] * 8 + [Parting.RESET] * 4 + [Parting.HALF_CLOSE] * 4 + [Parting.ABANDON]


@dataclass(frozen=True)
class Input:
    """One conversation on one connection. Times are seconds, -1 is never."""

    number: int
    pieces: list[bytes]  # as they are said, one after the other
    pause: float  # between two pieces
    stay: float  # after the last
    parting: Parting
    deaf: bool  # never reads
    answers: int  # the version of a client that acknowledges what it is sent; 0: it does not
    cut: int  # bytes of the wire that are sent, of TLS and WebSocket too
    flip: int  # byte of the wire with a wrong bit
    mischief: int  # seed of how the channel below MQTT misbehaves; 0: it does not


class Inputs:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        random = Random(seed)
        self._corpus = [conversation(random) for _ in range(CORPUS)]

    def __getitem__(self, number: int) -> Input:
        random = Random(self.seed * SPREAD + number)
        spoken = self._storm(random, number) or random.choice(self._corpus)
        packets = mutate(random, spoken.packets, random.choice(self._corpus).packets)
        well_known = bool(packets) and packets[0] is spoken.packets[0]  # or we cannot tell what we shall be answered
        data = b"".join(packets)[:LONGEST]
        pieces, pause = _pieces(random, data)
        layered = random.random()  # what is below MQTT is spoilt, too
        sound = well_known and layered >= UNSOUND
        return Input(
            number,
            pieces,
            pause,
            stay=random.choice([0.0, 0.0, 0.01, 0.05, 0.05, 0.3]),
            parting=random.choice(PARTINGS),
            deaf=random.random() < 0.02,
            answers=spoken.version if sound and random.random() < 0.5 else 0,
            cut=random.randrange(LAYER_BYTES) if layered < CUT else -1,
            flip=random.randrange(LAYER_BYTES) if CUT <= layered < FLIPPED else -1,
            mischief=random.randrange(1, SPREAD) if FLIPPED <= layered < UNSOUND else 0,
        )

    def _storm(self, random: Random, number: int) -> Conversation | None:
        """One of many connections that all have the same client id."""
        storm, place = divmod(number, STORM_EVERY)
        if place >= STORM:
            return None
        spoken = random.choice(self._corpus)
        version = random.choice(VERSIONS) if place % 4 == 0 else spoken.version
        first = encode(connect(random, version, f"storm-{storm % 10}", b"storm/"), version)
        return Conversation(version, [first, *spoken.packets[1:]])


def _pieces(random: Random, data: bytes) -> tuple[list[bytes], float]:
    """*data* cut somehow, and the pause between the pieces."""
    chance = random.random()
    if chance < 0.6 or len(data) < 2:
        return [data], 0.0
    if chance < 0.97:
        cuts = sorted(random.randrange(1, len(data)) for _ in range(random.choice([1, 1, 2, 5])))
        return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)], random.choice(
            [0.0, 0.001, 0.01]
        )
    size = max(1, len(data) // 100)  # byte by byte, if it is not long
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    return pieces, random.choice([0.0, SLOWEST / len(pieces)])
