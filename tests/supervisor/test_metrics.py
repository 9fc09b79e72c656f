# The metrics of a node that are its own, and not those of its workers.
from supervisor.metrics import _carrier


def test_the_carrier_is_measured() -> None:
    """Nobody could be alerted of a log that falls behind, or of a carrier that dies again and again."""
    told = {"state": "serving", "deaths": 2, "report": {"waiting_bytes": 7, "stored_packs": 5}}
    values = {
        sample.name: sample.value
        for family in _carrier(told)
        for sample in family.samples
        if "_created" not in sample.name
    }

    assert (1.0, 2, 7, 5) == (
        values["weir_carrier_up"],
        values["weir_carrier_deaths_total"],
        values["weir_carrier_waiting_bytes"],
        values["weir_carrier_stored_packs_total"],
    )
    assert 0 == values["weir_carrier_failing_partitions"]
    dead = {
        sample.name: sample.value
        for family in _carrier({**told, "state": "dead", "report": {}})
        for sample in family.samples
    }
    assert 0.0 == dead["weir_carrier_up"]
