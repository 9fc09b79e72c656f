from typing import cast

import pytest

from broker.control.spin import spin
from broker.net.loop import Loop


class FailingLoop:
    def turn(self) -> float:
        raise RuntimeError("a slice failed")


async def test_what_follows_a_slice_also_follows_one_that_failed() -> None:
    """The last lines of a worker before its end would be lost: those that say which clients it served."""
    written: list[str] = []

    with pytest.raises(RuntimeError):
        await spin(cast(Loop, FailingLoop()), None, lambda: 0.0, lambda: written.append("lines"))

    assert ["lines"] == written
