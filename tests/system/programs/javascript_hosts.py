# Where MQTT.js runs: in Node, led by lines, or in a headless browser, led by a page that we serve.
#
# One of each serves all tests, as starting a browser takes a second. A Host carries commands in and what was said
# out; what they mean is the business of javascript_client.py and javascript/driver.js.
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Protocol

import pytest

from tests.conftest import ROOT
from tests.system.processes import HOST, PATIENCE

SCRIPTS: Final = Path(__file__).resolve().parent / "javascript"
MODULES: Final = ROOT / ".venv" / "node" / "node_modules"  # where `make` installs what javascript/package.json asks for

Hear = Callable[[dict[str, Any]], None]


class Host(Protocol):
    def send(self, command: dict[str, Any]) -> None:
        """Hand one command to the driver; returns at once."""

    def close(self) -> None: ...


def library() -> Path:
    """The folder of MQTT.js. Skips the test where it is not installed."""
    if not (MODULES / "mqtt").is_dir():
        pytest.skip("MQTT.js is not installed: `make test` does it where there is npm")
    return MODULES / "mqtt"


class Node:
    def __init__(self, hear: Hear) -> None:
        if shutil.which("node") is None:
            pytest.skip("Node.js is not installed")
        library()
        self._hear = hear
        self._process = subprocess.Popen(
            ["node", str(SCRIPTS / "node.js")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "NODE_PATH": str(MODULES)},
            text=True,
            bufsize=1,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()  # which it takes as the end
        self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._hear(json.loads(line))


# A browser for machines: no window, and nothing of its own on the network.
BROWSER_FLAGS: Final = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class Browser:
    def __init__(self, hear: Hear) -> None:
        found = [name for name in ("chromium", "chromium-browser", "google-chrome") if shutil.which(name)]
        if not found:
            pytest.skip("Chromium is not installed")
        self._commands: queue.Queue[dict[str, Any]] = queue.Queue()
        self._server = ThreadingHTTPServer((HOST, 0), page_handler(library(), self._commands, hear))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        page = f"http://{HOST}:{self._server.server_address[1]}/"
        self._process = subprocess.Popen(
            [found[0], *BROWSER_FLAGS, f"--user-data-dir={self._profile.name}", page],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def send(self, command: dict[str, Any]) -> None:
        self._commands.put(command)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE)
        self._server.shutdown()
        self._server.server_close()
        self._profile.cleanup()


def page_handler(library: Path, commands: "queue.Queue[dict[str, Any]]", hear: Hear) -> type[BaseHTTPRequestHandler]:
    """What the page asks for: itself, its scripts, the next command; and what it posts."""
    files = {
        "/": ("text/html", SCRIPTS / "page.html"),
        "/driver.js": ("text/javascript", SCRIPTS / "driver.js"),
        "/mqtt.js": ("text/javascript", library / "dist" / "mqtt.min.js"),
    }

    class PageHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path == "/command":
                self._answer(200, "application/json", json.dumps(commands.get()).encode())
            elif self.path in files:
                kind, file = files[self.path]
                self._answer(200, kind, file.read_bytes())
            else:
                self._answer(404, "text/plain", b"")  # a browser asks for an icon

        def do_POST(self) -> None:
            hear(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self._answer(200, "text/plain", b"")

        def _answer(self, code: int, kind: str, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass  # what matters is what the page posts

    return PageHandler
