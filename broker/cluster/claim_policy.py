# What to do when Redis does not answer a claim (DESIGN section 4, "Redis away at CONNECT"). Pure decisions.
#
# A client whose session ends with its connection is let in at once when Redis is away, claimed within the node: the
# worst that follows is two connections of one id on two nodes, until Redis is back and the later one wins. A lasting
# session may be somewhere else with what waits for it, and a new one in its place would hide that: so its client waits,
# and is told to come back (0x88, 3.x: 3) when Redis has been asked for long enough.
from typing import Final

from broker.reasons import StoreFailure

CLAIM_PATIENCE: Final = 0.3  # seconds for one claim; an answer takes well below a millisecond
LASTING_PATIENCE: Final = 2.0  # seconds that the client of a lasting session waits in all
ASK_AGAIN: Final = 0  # after PAUSE
WITHIN_NODE: Final = 1
REFUSE: Final = 2
PAUSE: Final = 0.1  # seconds before the next try

# Failures that a server which is merely restarting gives, each within milliseconds.
BRIEF: Final = (
    StoreFailure.UNREACHABLE,
    StoreFailure.LOST,
    StoreFailure.LOADING,
    StoreFailure.SCRIPT_BUSY,
    StoreFailure.READ_ONLY,
    StoreFailure.SCRIPT_UNKNOWN,
)


def before_asking(lasting: bool, away: float) -> int:
    """Redis has been *away* for so many seconds: who need not ask it does not wait for it either."""
    return WITHIN_NODE if away >= CLAIM_PATIENCE and not lasting else ASK_AGAIN


def after_failure(failure: StoreFailure, lasting: bool, waited: float) -> int:
    """A claim failed, *waited* seconds after its CONNECT."""
    if lasting:
        return ASK_AGAIN if waited + PAUSE < LASTING_PATIENCE else REFUSE
    return ASK_AGAIN if failure in BRIEF and waited + PAUSE < CLAIM_PATIENCE else WITHIN_NODE


def patience(lasting: bool, waited: float) -> float:
    """Seconds that the next try may take, in whole PAUSEs: the line wants few different ones."""
    left = min(CLAIM_PATIENCE, (LASTING_PATIENCE if lasting else CLAIM_PATIENCE) - waited)
    return max(1, int(left / PAUSE + 1e-6)) * PAUSE
