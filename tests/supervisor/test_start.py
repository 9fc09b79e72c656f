# What happens before the node runs.
import signal
import threading

import pytest

from supervisor.node import SIGNALS
from supervisor.start import StartError, _pause


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_that_ends_a_start_is_named(number: signal.Signals) -> None:
    """A reload that meets a node that still waits for its name would end it, and nothing would say why."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        signal.pthread_kill(threading.get_ident(), number)
        with pytest.raises(StartError, match=f"^{number.name} ended the start while the node waited for its name.$"):
            _pause(30.0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
