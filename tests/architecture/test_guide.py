# broker/README.md names files and functions; both have to exist.
import re
from pathlib import Path
from typing import Final

import pytest

from tests.conftest import ROOT

OTHERS: Final = ("cli/", "supervisor/")
GUIDE: Final = (ROOT / "broker" / "README.md").read_text()
TAKEOVER: Final = "## A CONNECT that takes over a session from another worker"
MOST_FILES: Final = 15


def steps(text: str) -> list[str]:
    """The items of the numbered lists in *text*."""
    return [" ".join(item.split()) for item in re.findall(r"^\d+\. (.*?)(?=^\d+\. |^$|^\Z)", text, re.M | re.S)]


def files(text: str) -> list[Path]:
    """The modules that *text* names in backticks: of the broker, or of another package if the name begins with it."""
    names = re.findall(r"`((?:\w+/)*\w+\.(?:py|lua))`", text)
    return [ROOT / ("" if name.startswith(OTHERS) else "broker") / name for name in names if name != "setup.py"]


def test_every_file_in_the_guide_exists() -> None:
    """A reader would look for a file that was renamed."""
    assert [] == [str(file) for file in files(GUIDE) if not file.exists()]
    assert len(files(GUIDE)) > 40  # the pattern still finds them


@pytest.mark.parametrize("step", steps(GUIDE))
def test_every_function_of_a_step_is_in_one_of_its_files(step: str) -> None:
    """A reader would look for a function that was renamed or moved."""
    text = "\n".join(file.read_text() for file in files(step))
    missing = [name for name in re.findall(r"`(\w+)\(\)`", step) if f"def {name}(" not in text]

    assert [] == missing


def test_a_takeover_needs_few_files() -> None:
    """The way of a CONNECT would be lost again in dozens of files."""
    section = GUIDE[GUIDE.index(TAKEOVER) :]
    way = files("\n".join(steps(section[: section.index("Every connection ends")])))

    assert 0 < len({file for file in way if file.suffix == ".py"}) <= MOST_FILES
