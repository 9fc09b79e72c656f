# The programs by name, and which of them is tried on which transport.
#
# All of them on TCP, in every version they speak. The transports change nothing above the bytes, so there a library
# shows with one or two versions that its bytes and ours fit: what can break is an upgrade, a handshake, or a frame.
from typing import Final

import aiomqtt
from paho.mqtt.enums import MQTTProtocolVersion

from tests.system.addresses import TRANSPORTS, Transport
from tests.system.programs.aiomqtt_client import Aiomqtt
from tests.system.programs.command_line import CommandLine
from tests.system.programs.gmqtt_client import Gmqtt
from tests.system.programs.interface import Program
from tests.system.programs.javascript_client import BROWSER, NODE, JavaScript
from tests.system.programs.paho_client import Paho

PROGRAMS: Final[dict[str, Program]] = {
    "mosquitto-3.1": CommandLine("mqttv31"),
    "mosquitto-3.1.1": CommandLine("mqttv311"),
    "mosquitto-5.0": CommandLine("mqttv5"),
    "paho-3.1": Paho(MQTTProtocolVersion.MQTTv31),
    "paho-3.1.1": Paho(MQTTProtocolVersion.MQTTv311),
    "paho-5.0": Paho(MQTTProtocolVersion.MQTTv5),
    "aiomqtt-3.1.1": Aiomqtt(aiomqtt.ProtocolVersion.V311),
    "aiomqtt-5.0": Aiomqtt(aiomqtt.ProtocolVersion.V5),
    "gmqtt-5.0": Gmqtt(),
    "mqttjs-3.1.1": JavaScript(NODE, 4),
    "mqttjs-5.0": JavaScript(NODE, 5),
    "browser-3.1.1": JavaScript(BROWSER, 4),
    "browser-5.0": JavaScript(BROWSER, 5),
}

# TCP, or what they have beside it.
BEYOND_TCP: Final[dict[str, tuple[Transport, ...]]] = {
    "mosquitto-3.1.1": ("tls",),
    "mosquitto-5.0": ("tls",),
    "paho-3.1.1": ("tls", "ws", "wss"),
    "paho-5.0": ("tls", "ws", "wss"),
    "aiomqtt-5.0": ("tls", "ws", "wss"),
    "gmqtt-5.0": ("tls",),
    "mqttjs-3.1.1": ("ws",),
    "mqttjs-5.0": ("tls", "ws", "wss"),
    "browser-3.1.1": ("ws",),
    "browser-5.0": ("ws",),
}

ON_TCP: Final = [(name, TRANSPORTS[0]) for name in PROGRAMS if not name.startswith("browser")]
EVERYWHERE: Final = ON_TCP + [(name, transport) for name, more in BEYOND_TCP.items() for transport in more]


def stop_hosts() -> None:
    """End what runs between tests."""
    NODE.close()
    BROWSER.close()
