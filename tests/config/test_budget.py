# How the memory of a node is shared out.
from broker.config.budget import WorkerBudget, describe
from broker.config.schema import Config, Retained

MIB = 1 << 20


def test_accounts_follow_the_memory_and_the_settings() -> None:
    """The budget that is printed would not be the one that a worker keeps."""
    small, large = (WorkerBudget(Config(), memory * MIB, 2) for memory in (512, 1024))

    assert (128 * MIB, 128 * MIB, 64 * MIB) == (small.outbound, small.waiting, small.wills)
    assert large.total() > small.total()
    assert {"retained": 5 * MIB}.items() <= {
        one.name: one.limit for one in WorkerBudget(Config(retained=Retained(bytes=5 * MIB)), MIB, 1).accounts
    }.items()


def test_it_is_said_whether_the_worst_case_fits() -> None:
    """A node would be killed for its memory although `weir config check --budget` found it fine."""
    crowded = describe(Config(), 1024 * MIB, 2)
    roomy = describe(Config(retained=Retained(bytes=MIB)), 2048 * MIB, 2)

    assert crowded[-2].startswith("The worst case exceeds the memory by ")
    assert "The worst case of these fits into the memory." == roomy[-2]
