# The storm of connects of `weir demo`.
import os
import signal
import socket
import threading

import pytest

from cli.storm import storm


def test_ctrl_c_ends_it_as_one_interrupt() -> None:
    """The demo would end with what trio says of all the clients of the storm."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                storm(silent.getsockname()[1], 30.0, 100.0)
    finally:
        signal.signal(signal.SIGINT, before)
