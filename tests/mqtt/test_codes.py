# Table 2-6 of MQTT 5.0 and the return codes before it, written out once more: by packet, in the order of their types.
import pytest

from broker.mqtt.codes import allowed_codes
from broker.mqtt.packets import V5, V31, V311

REASON_CODES = {
    2: "00 80 81 82 83 84 85 86 87 88 89 8a 8c 90 95 97 99 9a 9b 9c 9d 9f",  # CONNACK
    4: "00 10 80 83 87 90 91 97 99",  # PUBACK
    5: "00 10 80 83 87 90 91 97 99",  # PUBREC
    6: "00 92",  # PUBREL
    7: "00 92",  # PUBCOMP
    9: "00 01 02 80 83 87 8f 91 97 9e a1 a2",  # SUBACK
    11: "00 11 80 83 87 8f 91",  # UNSUBACK
    14: "00 04 80 81 82 83 87 89 8b 8c 8d 8e 8f 90 93 94 95 96 97 98 99 9a 9b 9c 9d 9e 9f a0 a1 a2",  # DISCONNECT
    15: "00 18 19",  # AUTH
}
RETURN_CODES = {2: "00 01 02 03 04 05", 9: "00 01 02 80"}


@pytest.mark.parametrize(("kind", "codes"), REASON_CODES.items())
def test_the_reason_codes_of_a_packet(kind: int, codes: str) -> None:
    """A code that its packet may carry is refused, or one that nobody may send there is taken [MQTT-3.4.2-1]."""
    assert set(bytes.fromhex(codes)) == allowed_codes(kind, V5)


@pytest.mark.parametrize("version", [V31, V311])
@pytest.mark.parametrize(("kind", "codes"), RETURN_CODES.items())
def test_the_return_codes_before_5(kind: int, codes: str, version: int) -> None:
    """The same in 3.1 and 3.1.1: 3.1.1 [MQTT-3.2.2-6], 3.1.1 [MQTT-3.9.3-2]."""
    assert set(bytes.fromhex(codes)) == allowed_codes(kind, version)
