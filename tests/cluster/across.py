# Has the tests of a module run twice: with workers of one node, and with those of two.
#
# In the second form each worker of a pair, and two of three, are in different nodes with the same shard. Clients cannot
# tell the two forms apart.
from collections.abc import Sequence

import pytest


@pytest.fixture(params=[("weir",), ("weir", "other")], ids=["one node", "two nodes"])
def names(request: pytest.FixtureRequest) -> Sequence[str]:
    """Of the nodes that the workers of `nodes` are of, by turns."""
    found: Sequence[str] = request.param
    return found
