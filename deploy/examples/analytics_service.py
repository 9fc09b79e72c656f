# An analytics service as a shared APPLICATION client of Weir: MQTT 5, with paho-mqtt 2 (pip install 'paho-mqtt>=2.1').
#
#   weir start --set 'application.clients=[{client = "analytics-*"}]' --set store.durability=process
#   python analytics_service.py --client analytics-1 'sensors/#'
#   python analytics_service.py --client analytics-2 'sensors/#'   # has a part of the work from now on
#
# The services that run with one share name have each message once between them, all messages of a topic in their order.
# Each is given a message at least once, also if it was published while no service was there, and none falls over when
# its work takes longer than messages take to come. What that needs of a client:
#
# - A client id that stays, no clean start, and a session expiry: Weir keeps what comes while the service is away.
# - A receive maximum: so many messages are in its hands at most. All others wait in the log of Weir, where they take no
#   memory of anybody, and no other client waits for them.
# - Acknowledgements by hand, when the work on a message is done. If the service dies before, the message comes again.
#   The time for that is `application.pack_timeout` (20 s): with a receive maximum of R and W seconds of work for a
#   message, R x W should be well below it. Otherwise Weir has other services of the share go on with the topics of this
#   one, disconnects it, and sends it the messages again that it was given and has not acknowledged.
# - Messages that came over a connection that has ended are not acknowledged over the next one: they come again there.
#   Those that were done meanwhile are known by their packet ids, which stay, and only acknowledged.
# - A subscription to its gap notices: what Weir could not keep for it (retention, expiry) is told, and not missed in
#   silence.
# - Connecting again by itself, with pauses that grow.
import argparse
import json
import queue
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

LONGEST_PAUSE: Final = 30  # seconds between two attempts to connect
ENCODED: Final = (("%", "%25"), ("/", "%2F"), ("+", "%2B"), ("#", "%23"))  # of a client id in the topic of its notices


def gap_topic(client_id: str) -> str:
    for sign, encoded in ENCODED:
        client_id = client_id.replace(sign, encoded)
    return f"$SYS/broker/clients/{client_id}/gap"


class Statistics:
    """The work: how many values each topic had, their mean and their extremes."""

    def __init__(self) -> None:
        self._topics: dict[str, tuple[int, float, float, float]] = {}

    def add(self, topic: str, payload: bytes | bytearray) -> dict[str, Any]:
        """Take a value into account; ValueError: *payload* is no number."""
        value = float(payload)
        count, total, least, most = self._topics.get(topic, (0, 0.0, value, value))
        count, total, least, most = count + 1, total + value, min(least, value), max(most, value)
        self._topics[topic] = count, total, least, most
        return {"topic": topic, "value": value, "count": count, "mean": total / count, "least": least, "most": most}


class Service:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._statistics = Statistics()
        self._stop = threading.Event()
        # Messages that came and are not done, each with the connection that it came over: `receive_maximum` at most of
        # each connection.
        self._work: queue.SimpleQueue[tuple[int, paho.MQTTMessage] | None] = queue.SimpleQueue()
        self._connection = 0  # the number of this one
        self._done: dict[
            int, bytes | bytearray
        ] = {}  # by packet id: done, but not acknowledged, as the connection had ended
        self._lock = threading.Lock()  # for those two: paho calls in a thread of its own
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2,
            options.client,
            protocol=MQTTProtocolVersion.MQTTv5,
            manual_ack=True,
        )
        self._client.on_connect = self._connected
        self._client.on_connect_fail = lambda client, userdata: self._say("broker_unreachable")
        self._client.on_disconnect = self._disconnected
        self._client.on_subscribe = self._subscribed
        self._client.on_message = self._received
        self._client.message_callback_add(gap_topic(options.client), self._told_of_gap)
        self._client.reconnect_delay_set(1, LONGEST_PAUSE)

    def run(self) -> None:
        """Serve until SIGTERM or Ctrl-C."""
        options = self._options
        wanted = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        wanted.SessionExpiryInterval = options.expiry
        wanted.ReceiveMaximum = options.receive_maximum
        self._client.connect_async(options.host, options.port, keepalive=30, clean_start=False, properties=wanted)
        network = threading.Thread(target=self._client.loop_forever, kwargs={"retry_first_connection": True})
        network.start()
        while (task := self._work.get()) is not None:
            self._handle(*task)
        self._client.disconnect()  # the session stays, with all that is not acknowledged
        network.join()

    def stop(self) -> None:
        """End after the message that is worked on; the others come again."""
        self._stop.set()
        self._work.put(None)

    # In the thread of the work.

    def _handle(self, connection: int, message: paho.MQTTMessage) -> None:
        if self._stop.is_set() or connection != self._connection:
            return  # it comes again
        with self._lock:
            done = self._done.pop(message.mid, None)
        if not (message.dup and done == message.payload):
            self._stop.wait(self._options.work)  # what a database or a model would take
            try:
                self._say("done", **self._statistics.add(message.topic, message.payload))
            except ValueError:
                self._say("skipped", topic=message.topic, why="it is no number")  # and never asked for again
        with self._lock:
            if connection == self._connection:
                self._client.ack(message.mid, message.qos)
            else:
                self._done[message.mid] = message.payload

    # In the thread of paho.

    def _connected(
        self, client: paho.Client, userdata: Any, flags: paho.ConnectFlags, reason: ReasonCode, properties: Any
    ) -> None:
        if reason.is_failure:  # paho tries again
            self._say("refused", why=str(reason))
            return
        with self._lock:
            self._connection += 1
            if not flags.session_present:
                self._done.clear()
        self._say("connected", session_present=flags.session_present)
        # Each time, as the last connection may have ended before Weir had the subscriptions.
        options = SubscribeOptions(qos=1, retainHandling=SubscribeOptions.RETAIN_SEND_IF_NEW_SUB)
        share = f"$share/{self._options.share}/" if self._options.share else ""
        client.subscribe([(one, options) for one in self._filters(share)])

    def _filters(self, share: str) -> list[str]:
        return [gap_topic(self._options.client), *[share + one for one in self._options.filters]]

    def _subscribed(
        self, client: paho.Client, userdata: Any, packet_id: int, reasons: list[ReasonCode], properties: Any
    ) -> None:
        for filter, reason in zip(self._filters(""), reasons, strict=True):
            if reason.is_failure:
                self._say("not_subscribed", filter=filter, why=str(reason))

    def _disconnected(
        self, client: paho.Client, userdata: Any, flags: paho.DisconnectFlags, reason: ReasonCode, properties: Any
    ) -> None:
        with self._lock:
            self._connection += 1  # what came over the former one can be acknowledged no more
        self._say("disconnected", why=str(reason))

    def _received(self, client: paho.Client, userdata: Any, message: paho.MQTTMessage) -> None:
        self._work.put((self._connection, message))

    def _told_of_gap(self, client: paho.Client, userdata: Any, message: paho.MQTTMessage) -> None:
        """Messages are missing: here somebody has to be told, or the source be asked again."""
        self._say("gap", **json.loads(message.payload))
        client.ack(message.mid, message.qos)

    def _say(self, event: str, **facts: Any) -> None:
        print(json.dumps({"at": round(time.time(), 3), "event": event, **facts}), flush=True)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="Mean and extremes of the numbers that are published to topics.")
    parser.add_argument("filters", nargs="+", help="topic filters")
    parser.add_argument("--client", default="analytics-1", help="client id, which application.clients has to name")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=1883)
    parser.add_argument("--share", default="analytics", help="share name; '': all messages are for this service")
    parser.add_argument("--receive-maximum", type=int, default=20, help="messages in hand at once (20)")
    parser.add_argument("--expiry", type=int, default=7 * 86400, help="seconds that the session outlives a connection")
    parser.add_argument("--work", type=float, default=0.0, help="seconds that the work on a message takes")
    service = Service(parser.parse_args(arguments))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: service.stop())
    service.run()


if __name__ == "__main__":
    main(sys.argv[1:])
