"""What a container is asked by: the gateway that the same file and variables start."""

import contextlib
import http.server
import ssl
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from gateway.process.announced import Gateway, announced
from tests.selfhosted.discovery.authorities import ONE, TWO

_BODIES = {"/healthz": (200, b"{}"), "/readyz": (503, b'{"status":"starting","reason":"the database is away"}')}


@contextlib.contextmanager
def answering(answers: Mapping[str, tuple[int, bytes]], tls: tuple[Path, Path] | None = None) -> Iterator[int]:
    """A server at a port of this machine."""

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers[self.path]
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Answers) as server:
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def asked(tmp_path: Path, text: str, *arguments: str, **environ: str) -> tuple[int, str]:
    """Its exit status and all that it said."""
    (tmp_path / "gateway.yaml").write_text(text)
    done = CliRunner().invoke(app, ["health", "--config", str(tmp_path / "gateway.yaml"), *arguments], env=environ)
    return done.exit_code, done.output


def test_ready_or_alive(tmp_path: Path) -> None:
    """A gateway that runs and is not ready is alive, and the reason is told."""
    with answering(_BODIES) as port:
        file = f"server: {{port: {port}, host: 0.0.0.0}}\n"
        assert asked(tmp_path, file, "--live") == (0, "ok\n")
        status, said = asked(tmp_path, file)
        assert (status, "the database is away" in said) == (1, True)
    with answering({"/readyz": (200, b"{}")}) as port:
        assert asked(tmp_path, f"server: {{port: {port}}}\n") == (0, "ok\n")


def test_the_environment_wins(tmp_path: Path) -> None:
    """As it does where the gateway starts; the image names port and host there."""
    with answering({"/readyz": (200, b"{}")}) as port:
        variables = {"WEIGHBRIDGE_PORT": str(port), "WEIGHBRIDGE_HOST": "::"}
        assert asked(tmp_path, "server: {port: 1, host: 192.0.2.1}\n", **variables) == (0, "ok\n")


def test_where_it_listens_whatever_the_file_says(tmp_path: Path) -> None:
    """`serve --port` is in no file and no variable: a health check that asks elsewhere calls a sound gateway ill (openclaw PR 116639,
    portainer-mcp #98). Of two with one file on a machine, the file's is asked.
    """
    file = tmp_path / "gateway.yaml"
    with answering({"/readyz": (200, b"{}")}) as port, answering(_BODIES) as other, contextlib.ExitStack() as runs:
        for pid, url in ((1, f"http://0.0.0.0:{port}"), (2, "http://127.0.0.1:1")):
            runs.enter_context(announced(tmp_path / "data" / "serving", Gateway(pid, str(file), "", url)))
            status, said = asked(tmp_path, f"server: {{port: {other}}}\n", WEIGHBRIDGE_DATA_DIR=str(tmp_path / "data"))
            assert (status, said == "ok\n") == ((0, True) if pid == 1 else (1, False))
    # One of the version before tells no address.
    with answering({"/readyz": (200, b"{}")}) as port, announced(tmp_path / "var/serving", Gateway(3, str(file), "")):
        assert asked(tmp_path, f"server: {{port: {port}}}\n") == (0, "ok\n")


def test_nobody_answers(tmp_path: Path) -> None:
    """A line and a status, no traceback."""
    with answering({}) as port:
        pass
    status, said = asked(tmp_path, f"server: {{port: {port}}}\n")
    assert (status, said.startswith("weighbridge: no answer from 127.0.0.1:")) == (1, True)


def test_its_own_certificate_alone(tmp_path: Path) -> None:
    """A gateway with TLS is asked by TLS, and another's certificate in its place is no health."""
    for name, of in (("one", ONE), ("two", TWO)):
        (tmp_path / f"{name}.pem").write_text(of.certificate)
        (tmp_path / f"{name}.key").write_text(of.key)
    with answering({"/readyz": (200, b"{}")}, (tmp_path / "one.pem", tmp_path / "one.key")) as port:
        file = f"server: {{port: {port}, tls: {{certificate: one.pem, key: one.key}}}}\n"
        assert asked(tmp_path, file) == (0, "ok\n")
        status, said = asked(tmp_path, file.replace("one.pem", "two.pem"))
        assert (status, "CERTIFICATE_VERIFY_FAILED" in said) == (1, True)


@pytest.mark.parametrize("port", ["0", "env:PORT"])
def test_a_port_that_cannot_be_told(tmp_path: Path, port: str) -> None:
    """A port that the system chooses is in no file."""
    status, said = asked(tmp_path, f"server: {{port: '{port}'}}\n")
    assert (status, port in said) == (2, True)
