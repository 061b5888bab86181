"""`weighbridge selfhosted status|drain|undrain`: what the database has, and what a running gateway says."""

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from gateway.cli import app
from tests.running_gateway import model

KEY = "an operator's key"


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("WEIGHBRIDGE_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    config = {
        "providers": {"models": [{k: v for k, v in model("own-model", []).items() if k != "deployments"}]},
        "selfhosted": {
            "pools": [
                {
                    "name": "own",
                    "targets": ["own-model"],
                    "replicas": [{"name": "fixed", "url": "http://10.0.0.1:8000"}],
                    "dns": {"host": "engines.internal", "port": 8000},
                }
            ]
        },
    }
    (tmp_path / "gateway.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "key").write_text(f"{KEY}\n")
    monkeypatch.setenv("WEIGHBRIDGE_CONFIG", str(tmp_path / "gateway.yaml"))
    monkeypatch.setenv("WEIGHBRIDGE_DATA_DIR", str(tmp_path / "data"))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ("selfhosted", *arguments))


def ok(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_an_order_is_given_shown_and_taken_back() -> None:
    """Without a gateway: what is configured, registered and ordered, and who decides; not how replicas are."""
    told = ok("status")
    assert told.splitlines()[0] == "own: own-model; nobody decides how many; leader none"
    assert "those behind dns are known to a running gateway: --url" in told
    assert ok("drain", "own", "fixed") == "own/fixed: drains; `weighbridge selfhosted undrain own fixed`\n"
    assert "already" in ok("drain", "own", "fixed")
    assert "check the name" in run("drain", "own", "10.0.0.9").stderr
    (pool,) = json.loads(ok("status", "--json"))
    assert [(each["name"], each["draining"]) for each in pool["replicas"]] == [("fixed", True)]
    assert pool["orders_elsewhere"] == ["10.0.0.9"]
    assert "also ordered to drain: 10.0.0.9" in ok("status")
    assert ok("undrain", "own", "fixed") == "own/fixed: takes work again\n"
    assert run("undrain", "own", "fixed").exit_code == 1


def test_without_a_configuration_nothing_is_ordered(monkeypatch: pytest.MonkeyPatch) -> None:
    """An order for a pool that nobody knows would wait for ever."""
    monkeypatch.delenv("WEIGHBRIDGE_CONFIG")
    result = run("drain", "own", "fixed")
    assert result.exit_code == 1
    assert "pass --config FILE" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("drain", "ghost", "fixed"),
        ("undrain", "ghost", "fixed"),
        ("drain", "own", "a b"),
        ("status", "--key-file", "x"),
    ],
)
def test_a_slip_of_the_pen_changes_nothing(arguments: tuple[str, ...]) -> None:
    """A pool that is not configured, a name that nobody can have, a key for nothing: status 2."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output


class Gateway:
    """Answers as it is told to."""

    def __init__(self) -> None:
        self.status = 200
        self.body = b""
        self.url = ""


@contextlib.contextmanager
def answering() -> Iterator[Gateway]:
    gateway = Gateway()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.headers["authorization"] == f"Bearer {KEY}" and self.path == "/v1/fleet"
            self.send_response(gateway.status if known else 401)
            self.end_headers()
            self.wfile.write(gateway.body if known else b"{}")

        def log_message(self, *_args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    gateway.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield gateway
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def fleet(state: str) -> dict[str, Any]:
    stats = {"running": 3, "waiting": 0, "kv_usage": 0.5, "age_s": 0.4}
    usual = {"url": "http://10.0.0.1:8000", "source": "dns"}
    pool = {
        "name": "own",
        "state": state,
        "desired": 3,
        "counts": {"ready": 1},
        "running": 3,
        "waiting": 0,
        "kv_usage": 0.5,
        "prefix_hit_rate": None,
        "problems": [{"kind": "source_failed", "source": "dns", "text": "the resolver does not answer"}],
        "replicas": [
            {**usual, "name": "a", "state": "ready", "stats": stats, "why": ""},
            {**usual, "name": "b", "state": "down", "stats": None, "why": "refused"},
        ],
    }
    return {"object": "list", "data": [pool], "registry": {"reachable": False, "problem": "the database is down"}}


def test_a_running_gateway_tells_how_replicas_are(tmp_path: Path) -> None:
    """The status is 3 when a pool has nobody who can serve; a key is never an argument."""
    key = ("--key-file", str(tmp_path / "key"))
    with answering() as gateway:
        gateway.body = json.dumps(fleet("degraded")).encode()
        told = ok("status", "--url", gateway.url, *key)
        assert told.splitlines()[0] == "own: degraded; 1 ready of 3 wanted; 3 running, 0 waiting, kv 50 %"
        assert told.splitlines()[2].split() == [
            "a",
            "http://10.0.0.1:8000",
            "dns",
            "ready",
            "3",
            "0",
            "50",
            "%",
            "0.4",
            "s",
        ]
        assert "unknown" in told.splitlines()[3]
        assert "! dns: the resolver does not answer" in told
        assert "! the database is down" in told
        assert json.loads(ok("status", "--json", "--url", gateway.url, *key)) == fleet("degraded")
        gateway.body = json.dumps(fleet("down")).encode()
        assert run("status", "--url", gateway.url, *key).exit_code == 3
        for status, body in (
            (403, b'{"error": {"message": "not yours"}}'),
            (200, b"<html>"),
            (200, b"{}"),
            (200, b"[]"),
        ):
            gateway.status, gateway.body = status, body
            result = run("status", "--url", gateway.url, *key)
            assert result.exit_code == 1
            assert len(result.stderr.splitlines()) == 1
    assert run("status", "--url", gateway.url, *key).exit_code == 1
    assert run("status", "--url", "10.0.0.1", *key).exit_code == 2
    assert run("status", "--url", gateway.url).exit_code == 2
    (tmp_path / "key").write_text("")
    assert run("status", "--url", gateway.url, *key).exit_code == 2
