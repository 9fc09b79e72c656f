# The identity of a worker process.
from broker.worker_id import WorkerId


def test_a_replacement_of_a_worker_is_another_identity() -> None:
    """A process that was started in the place of a dead one would be taken for the dead one."""
    former, same, replacement = WorkerId("weir", 3, 1), WorkerId("weir", 3, 1), WorkerId("weir", 3, 2)

    assert former == same and hash(former) == hash(same)
    assert former != replacement
    assert former != WorkerId("other", 3, 1)
    assert former != WorkerId("weir", 2, 1)


def test_an_identity_is_shown_as_logs_and_keys_need_it() -> None:
    """Keys in Redis would not match between workers, or logs name another worker."""
    worker = WorkerId("weir", 3, 0xAB)

    assert ("weir/3", "00000000000000ab") == (str(worker), worker.incarnation_text)
