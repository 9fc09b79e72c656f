# deploy/release.py: what keeps a commit from being released.
import runpy
from typing import Any

import pytest

from tests.conftest import ROOT

RELEASE: dict[str, Any] = runpy.run_path(str(ROOT / "deploy" / "release.py"))
CODE = 'VERSION: Final = "0.2.0"  # the only place\n'
CHANGELOG = "# Changelog\n\n## 0.2.0 (2026-11-24)\n\n- A line.\n"


def obstacles(
    version: str = "0.2.0", code: str = CODE, changelog: str = CHANGELOG, changed: str = "", tags: str = "v0.1.0"
) -> list[str]:
    found: list[str] = RELEASE["obstacles"](version, code, changelog, changed, tags)
    return found


def test_a_commit_that_says_its_version_can_be_released() -> None:
    """No release would ever be made."""
    assert [] == obstacles()


@pytest.mark.parametrize(
    ("different", "sentence"),
    [
        ({"version": ""}, "VERSION is '' and must be three numbers, such as VERSION=0.2.0."),
        ({"version": "0.2"}, "VERSION is '0.2' and must be three numbers, such as VERSION=0.2.0."),
        ({"code": CODE.replace("2", "3")}, "broker/version.py does not say 0.2.0."),
        (
            {"changelog": "## 0.2.0 (unreleased)\n"},
            'CHANGELOG.md has no heading "## 0.2.0 (YYYY-MM-DD)".',
        ),
        ({"changed": " M setup.py"}, "Files are changed and not committed."),
        ({"tags": "v0.1.0\nv0.2.0"}, "The tag v0.2.0 exists."),
    ],
)
def test_each_obstacle_has_a_sentence(different: dict[str, str], sentence: str) -> None:
    """A package would carry a version that its sources, its changelog or its tag deny."""
    assert [sentence] == obstacles(**different)
