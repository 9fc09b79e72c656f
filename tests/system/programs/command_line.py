# mosquitto_pub and mosquitto_sub.
import queue
import signal
import subprocess
import threading
from collections.abc import Sequence
from typing import Final

from tests.system.addresses import Address
from tests.system.processes import HOST, PATIENCE
from tests.system.programs.interface import SESSION_SECONDS, SILENT, NothingCame, Received, Said, Wish

# How mosquitto_sub is to print a message: these fields, parted by a byte that none of them has.
SEPARATOR: Final = "\x1f"
FORMAT: Final = SEPARATOR.join(["got", "%q", "%r", "%t", "%C", "%R", "%D", "%E", "%A", "%S", "%P", "%p"])
FAREWELL: Final = b"Received DISCONNECT ("


class CommandLineListener:
    def __init__(self, command: Sequence[str]) -> None:
        self.ended = False
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self._messages: queue.Queue[bytes] = queue.Queue()
        self._farewells: queue.Queue[int] = queue.Queue()
        self._subscribed = threading.Event()
        self._other_lines: list[bytes] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._subscribed.wait(PATIENCE), f"mosquitto_sub has no SUBACK: {self._other_lines}"

    def take(self, patience: float = PATIENCE) -> Received:
        try:
            line = self._messages.get(timeout=patience)
        except queue.Empty:
            raise NothingCame(f"mosquitto_sub says only {self._other_lines}") from None
        fields = line.rstrip(b"\n").split(SEPARATOR.encode(), 11)
        qos, retain, topic, content, response, correlation, expiry, alias, subscription, user, payload = fields[1:]
        pairs = [pair.partition(":") for pair in user.decode().split()]
        said = Said(
            content.decode(),
            response.decode(),
            correlation,
            tuple((key, value) for key, _, value in pairs),
            int(expiry or 0),
            int(alias or 0),
            (int(subscription),) if subscription else (),
        )
        return Received(topic.decode(), payload, int(qos), retain == b"1", said)

    def farewell(self) -> int:
        return self._farewells.get(timeout=PATIENCE)

    def leave(self) -> None:
        self._end(signal.SIGTERM)

    def die(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        self.ended = True
        self._process.send_signal(how)
        self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"got" + SEPARATOR.encode()):
                self._messages.put(line)
            elif line.startswith(b"Subscribed "):
                self._subscribed.set()
            elif line.startswith(FAREWELL):
                self._farewells.put(int(line[len(FAREWELL) :].partition(b")")[0]))
            else:
                self._other_lines.append(line)


class CommandLine:
    def __init__(self, version: str) -> None:
        self._version = version

    def listen(self, address: Address, topic_filter: str, wish: Wish) -> CommandLineListener:
        command = ["stdbuf", "-oL"]  # its debug lines tell us of the SUBACK, and would stay in a pipe's buffer
        command += self._command("mosquitto_sub", address, topic_filter, wish.qos)
        command += ["-d", "-F", FORMAT]
        if wish.session:
            command += ["-c", "-i", wish.session]
            if self._version == "mqttv5":
                command += ["-x", str(SESSION_SECONDS)]
        if wish.will is not None:
            command += ["--will-topic", wish.will.topic, "--will-payload", wish.will.payload.decode()]
            command += ["--will-qos", "1"]
        if wish.identifier:
            command += ["-D", "subscribe", "subscription-identifier", str(wish.identifier)]
        return CommandLineListener(command)

    def publish(
        self,
        address: Address,
        topic: str,
        payloads: Sequence[bytes],
        qos: int = 0,
        *,
        retain: bool = False,
        said: Said = SILENT,
    ) -> None:
        command = self._command("mosquitto_pub", address, topic, qos)
        if retain:
            command.append("-r")
        for value in properties(said):
            command += ["-D", "publish", *value]
        if list(payloads) == [b""]:
            command.append("-n")
        else:
            command.append("-l")  # a message per line
        lines = b"".join(payload + b"\n" for payload in payloads)
        done = subprocess.run(command, input=lines, capture_output=True, timeout=PATIENCE)
        assert 0 == done.returncode, done.stderr.decode()

    def _command(self, program: str, address: Address, topic: str, qos: int) -> list[str]:
        command = [program, "-h", HOST, "-p", str(address.port), "-V", self._version, "-t", topic, "-q", str(qos)]
        if address.encrypted:
            command += ["--cafile", str(address.authority)]
        return command


def properties(said: Said) -> list[list[str]]:
    """What *said* is called on the command line."""
    named = [
        ("content-type", said.content_type),
        ("response-topic", said.response_topic),
        ("correlation-data", said.correlation.decode()),
        ("message-expiry-interval", said.expiry and str(said.expiry)),
        ("topic-alias", said.alias and str(said.alias)),
    ]
    return [[name, value] for name, value in named if value] + [["user-property", *pair] for pair in said.user]
