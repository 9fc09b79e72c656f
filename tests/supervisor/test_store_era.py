# The era of the embedded Redis: new after a loss of power that may have taken something back, and only then.
from pathlib import Path

import pytest

from supervisor import store_era
from supervisor.store_era import FILE, StoreEra


@pytest.fixture(autouse=True)
def boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the kernel tells of this start of the machine, in a file that a test writes."""
    path = tmp_path / "boot_id"
    path.write_text("first\n")
    monkeypatch.setattr(store_era, "BOOT_ID", path)
    return path


def after(folder: Path, boot: Path, loses: bool, again: bool, ended: bool = False) -> bool:
    """Whether a run behind another one, which *ended* as it should, has its era. *again*: the machine was started."""
    former = StoreEra(folder, loses)
    if ended:
        former.end()
    if again:
        boot.write_text("second\n")
    return StoreEra(folder, True).name == former.name


def test_a_killed_node_keeps_its_era(tmp_path: Path, boot: Path) -> None:
    """QoS 2 would be doubled by kill -9."""
    assert after(tmp_path, boot, loses=True, again=False)


def test_a_machine_that_was_started_begins_another(tmp_path: Path, boot: Path) -> None:
    """What is left of the former one would be taken for its last state: see tokens.py."""
    assert not after(tmp_path, boot, loses=True, again=True)
    assert StoreEra(tmp_path, True).name == StoreEra(tmp_path, True).name


def test_what_is_never_taken_back_keeps_its_era(tmp_path: Path, boot: Path) -> None:
    """QoS 2 would be doubled by each start of the machine, though `power` promises that nothing is."""
    assert after(tmp_path, boot, loses=False, again=True)


def test_a_stop_keeps_the_era(tmp_path: Path, boot: Path) -> None:
    """QoS 2 would be doubled by a planned start of the machine."""
    assert after(tmp_path, boot, loses=True, again=True, ended=True)


@pytest.mark.parametrize("text", [None, "", "[]", '{"era": 5}', '{"era": "00"}', '{"era": "zz", "loses": false}'])
def test_without_a_readable_file_there_is_a_new_era(tmp_path: Path, boot: Path, text: str | None) -> None:
    """A node would not start after a loss of power, or would believe data of a backup."""
    former = StoreEra(tmp_path, False).name
    (tmp_path / FILE).unlink()
    if text is not None:
        (tmp_path / FILE).write_text(text)

    assert StoreEra(tmp_path, True).name not in ("", former)


def test_a_full_disk_does_not_keep_a_node_from_ending(tmp_path: Path, boot: Path) -> None:
    """The supervisor would fail in the last moment."""
    era = StoreEra(tmp_path, True)
    (tmp_path / FILE).unlink()
    tmp_path.joinpath(f"{FILE}.new").mkdir()

    era.end()
