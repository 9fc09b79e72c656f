# Keeps passwords out of the process list, where every user of the machine can read the arguments of a command.
#
# A command whose arguments contain a password executes itself anew as soon as it starts: with "***" in place of each
# password, and with the true arguments in an environment variable, which only the same user and root can read. The new
# program takes them out of its environment again, so that no child inherits them. It keeps the process id and all
# descriptors. The password can be read for some 50 ms, until Python has started, and for good in the history of the
# shell: a configuration file or the environment (WEIR_REDIS__URL, WEIR_PASSWORD) is better.
#
# Why not overwrite the arguments in memory? Python keeps a copy and offers no way to the original. And a setting moved
# to its own variable (WEIR_REDIS__URL) would lose its priority over a file, and its source in messages.
#
# This module is imported before anything else of Weir, so it must be quick to import.
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Final

ARGUMENTS: Final = "WEIR_ARGUMENTS"  # JSON: the true arguments that are hidden, by their position
HIDDEN: Final = "***"

_URL: Final = re.compile(r"(://[^:@]*:).*@", re.DOTALL)  # a password may contain @, too
_OPTION: Final = re.compile(
    r"(--password|--pw|-[A-Za-z]*?P)(=?)(.*)", re.DOTALL
)  # short options can be joined: -vPWORD


def hide_secrets() -> None:
    """Execute this program anew if its arguments contain a password; the new one sees the true arguments here."""
    handed_over = os.environ.pop(ARGUMENTS, None)
    if handed_over is not None:
        sys.argv[1:] = restored(sys.argv[1:], handed_over)
        return
    shown, environment = without_secrets(sys.argv[1:])
    if not environment:
        return
    command = [sys.executable, *sys.orig_argv[1 : len(sys.orig_argv) - len(shown)], *shown]
    try:
        os.execve(sys.executable, command, {**os.environ, **environment})
    except OSError as error:  # the arguments take more room in the environment than the system allows
        print(f"weir: The process list shows the password: {error.strerror}.", file=sys.stderr)


def without_secrets(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The arguments with "***" for passwords, and the environment in which a command finds the true ones.

    Without a password the environment is empty. What only looks like a password is hidden, too: the command gets it
    all the same.
    """
    shown: list[str] = []
    expected = False  # the last argument was an option whose value is a password
    for argument in arguments:
        option = None if expected else _OPTION.fullmatch(argument)
        if expected:
            shown.append(HIDDEN)
        elif option and (option[2] or option[3]):
            shown.append(f"{option[1]}{option[2]}{HIDDEN}")
        else:
            shown.append(_URL.sub(rf"\1{HIDDEN}@", argument))
        expected = bool(option) and shown[-1] == argument
    hidden = {at: true for at, (true, seen) in enumerate(zip(arguments, shown, strict=True)) if true != seen}
    return shown, {ARGUMENTS: json.dumps(hidden)} if hidden else {}


def restored(arguments: Sequence[str], handed_over: str) -> list[str]:
    """The true arguments, from those of the process list and the text of the environment variable."""
    try:
        hidden = json.loads(handed_over)
    except ValueError:
        return list(arguments)
    if not isinstance(hidden, Mapping):
        return list(arguments)
    return [str(hidden.get(str(at), one)) for at, one in enumerate(arguments)]
