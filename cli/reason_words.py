# The codes with which a broker refuses, for the user of a client command: what they mean, and which option helps.
from typing import Final

from broker.insight.reason_words import REASON_CODES, RETURN_CODES

PASSWORD: Final = "give them with --user and --password"
USER: Final = "use --user and --password, or a user with more rights"
RETURN_CODE_HINTS: Final = {
    1: "try --version 5 or 3.1.1",
    2: "choose another with --id",
    4: PASSWORD,
    5: USER,
}
REASON_CODE_HINTS: Final = {
    0x84: "try --version 3.1.1",
    0x85: "choose another with --id",
    0x86: PASSWORD,
    0x87: USER,
    0x89: "try again later, or connect more slowly",
    0x8E: "another connection uses the same client id",
    0x95: "try a smaller payload",
    0x9A: "leave --retain out",
    0x9B: "try a lower --qos",
    0x9F: "connect more slowly (--connect-rate)",
}


def in_words(kind: str, code: int) -> str:
    """*code* and its meaning, as the end of a sentence. *kind* is the packet that has the code."""
    if kind == "CONNACK" and code in RETURN_CODES:
        return f"{code}, {_hinted(RETURN_CODES[code], RETURN_CODE_HINTS.get(code, ''))}"
    if kind == "SUBACK" and code == 0x80:
        return "0x80, the filter is refused."
    meaning = REASON_CODES.get(code, "a code that MQTT does not define")
    return f"0x{code:02x}, {_hinted(meaning, REASON_CODE_HINTS.get(code, ''))}"


def _hinted(meaning: str, hint: str) -> str:
    return f"{meaning}: {hint}." if hint else f"{meaning}."
