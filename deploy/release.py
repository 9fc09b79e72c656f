# Checks that the current commit can be released as a version, and tags it: `make release VERSION=x.y.z`.
#
#     python deploy/release.py check x.y.z   before the wheel is built
#     python deploy/release.py tag x.y.z     after it was built and tried
#
# A release is a commit that says so itself: broker/version.py has the version, and CHANGELOG.md a dated heading for it.
# The recipe changes no file, so CI has tested the commit that is tagged.
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

VERSION: Final = re.compile(r"\d+\.\d+\.\d+")
CODE: Final = re.compile(r'^VERSION: Final = "([^"]+)"', re.MULTILINE)
DATED: Final = r"^## {} \(\d{{4}}-\d{{2}}-\d{{2}}\)$"


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout.strip()


def obstacles(version: str, code: str, changelog: str, changed: str, tags: str) -> list[str]:
    """What keeps this commit from being released as *version*: a sentence for each."""
    if not VERSION.fullmatch(version):
        return [f"VERSION is {version!r} and must be three numbers, such as VERSION=0.2.0."]
    found = []
    if (own := CODE.search(code)) is None or own[1] != version:
        found.append(f"broker/version.py does not say {version}.")
    if not re.search(DATED.format(re.escape(version)), changelog, re.MULTILINE):
        found.append(f'CHANGELOG.md has no heading "## {version} (YYYY-MM-DD)".')
    if changed:
        found.append("Files are changed and not committed.")
    if f"v{version}" in tags.split():
        found.append(f"The tag v{version} exists.")
    return found


def main() -> None:
    what, version = sys.argv[1:] if len(sys.argv) == 3 else ("check", "")
    code, changelog = Path("broker/version.py").read_text(), Path("CHANGELOG.md").read_text()
    found = obstacles(version, code, changelog, git("status", "--porcelain"), git("tag", "--list"))
    if found:
        sys.exit("\n".join(found))
    if what == "tag":
        git("tag", "--annotate", f"v{version}", "--message", f"Weir {version}")
        print(f"Tagged v{version}. To publish it: git push origin v{version}")


if __name__ == "__main__":
    main()
