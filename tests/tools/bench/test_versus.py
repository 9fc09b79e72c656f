# Where the processes run while two builds are compared.
from tests.tools.bench.loads import LOADS
from tests.tools.bench.versus import APART, placed, places


def test_node_and_load_generator_have_a_core_each() -> None:
    """The kernel would put them on one core or on two, which differ more than builds do."""
    assert {load.name: load.cores or APART for load in LOADS} == {load.name: load.cores for load in placed(LOADS, 2)}
    assert "a core each" in places(2)


def test_one_core_is_shared() -> None:
    """Figures of a load that shares its core would be told as those of one that does not."""
    assert [*LOADS] == placed(LOADS, 1)
    assert "share it" in places(1)
