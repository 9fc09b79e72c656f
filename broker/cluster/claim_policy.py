# What becomes of a claim that Redis does not answer: pure decisions.
#
# A client whose session ends with its connection is accepted at once while Redis is away, claimed within the node: at
# worst two connections of one client id exist on two nodes, until Redis is back and the later one wins. A lasting
# session may be at another node, with messages that wait for it, and a new session would hide them: so its client
# waits, and is refused (0x88, 3.x: 3) after LASTING_PATIENCE.
from typing import Final

from broker.reasons import StoreFailure

CLAIM_PATIENCE: Final = 0.3  # seconds for one claim; an answer takes well below a millisecond
LASTING_PATIENCE: Final = 2.0  # seconds for all tries of a lasting session
ASK_AGAIN: Final = 0  # after PAUSE
WITHIN_NODE: Final = 1
REFUSE: Final = 2
PAUSE: Final = 0.1  # seconds before the next try

# Failures that a server gives while it restarts, each within milliseconds.
BRIEF: Final = (
    StoreFailure.UNREACHABLE,
    StoreFailure.LOST,
    StoreFailure.LOADING,
    StoreFailure.SCRIPT_BUSY,
    StoreFailure.READ_ONLY,
    StoreFailure.SCRIPT_UNKNOWN,
)


def before_asking(lasting: bool, away: float) -> int:
    """Redis has been *away* for so many seconds: a session that can be claimed without it does not wait for it."""
    return WITHIN_NODE if away >= CLAIM_PATIENCE and not lasting else ASK_AGAIN


def after_failure(failure: StoreFailure, lasting: bool, waited: float) -> int:
    """A claim failed, *waited* seconds after its CONNECT."""
    if lasting:
        return ASK_AGAIN if waited + PAUSE < LASTING_PATIENCE else REFUSE
    return ASK_AGAIN if failure in BRIEF and waited + PAUSE < CLAIM_PATIENCE else WITHIN_NODE


def patience(lasting: bool, waited: float) -> float:
    """Seconds that the next try may take, in whole PAUSEs, as the pipeline needs few different timeouts."""
    left = min(CLAIM_PATIENCE, (LASTING_PATIENCE if lasting else CLAIM_PATIENCE) - waited)
    return max(1, int(left / PAUSE + 1e-6)) * PAUSE
