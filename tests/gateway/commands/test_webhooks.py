"""`weighbridge webhooks`: what a person sees of the destinations, and never a secret."""

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml
from openai import OpenAI
from typer.testing import CliRunner, Result

from gateway.cli import app
from tests.api.webhooks.receiver import SECRET
from tests.sqlite import newest_sqlite


class _Receiver(BaseHTTPRequestHandler):
    status = 204

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        OpenAI(api_key="unused").webhooks.unwrap(body, dict(self.headers), secret=SECRET)
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass


@pytest.fixture
def receiver() -> Iterator[type[_Receiver]]:
    """A receiver that checks each signature."""
    handler = type("Handler", (_Receiver,), {})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        handler.port = server.server_port  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield handler
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, receiver: type[_Receiver]) -> None:
    for name in list(os.environ):
        if name.startswith("WEIGHBRIDGE_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    url = f"http://127.0.0.1:{receiver.port}/hooks/a-token"  # type: ignore[attr-defined]
    deployment = {"name": "a", "kind": "scripted", "upstream_model": "ok"}
    model = {"model_id": "m", "provider": "p", "max_context_tokens": 8000, "deployments": [deployment]}
    config = {
        "providers": {"models": [{**model, "prices": {"input": "1", "output": "1"}}]},
        "webhooks": {"destinations": [{"name": "ops", "url": url, "secret": "env:OPS_SECRET"}]},
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("WEIGHBRIDGE_CONFIG", str(tmp_path / "c.yaml"))
    monkeypatch.setenv("WEIGHBRIDGE_DATA_DIR", str(tmp_path / "data"))
    newest_sqlite(tmp_path / "data" / "weighbridge.sqlite")
    monkeypatch.setenv("OPS_SECRET", SECRET)


def webhooks(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["webhooks", *arguments])


def test_a_test_that_is_taken(receiver: type[_Receiver]) -> None:
    """It is signed, told and counted; the list shows host and figures, and neither path nor secret."""
    assert webhooks("test", "ops").stdout == "ops has taken it (204)\n"
    done = webhooks("list")
    heading, row = done.stdout.splitlines()
    assert heading.split() == ["name", "host", "state", "waiting", "delivered", "given", "up", "last", "answer"]
    assert row.split() == ["ops", f"127.0.0.1:{receiver.port}", "enabled", "0", "1", "0", "204"]  # type: ignore[attr-defined]
    assert "a-token" not in done.output + webhooks("list", "--json").output
    assert json.loads(webhooks("test", "ops", "--json").stdout) == {"name": "ops", "delivered": True, "status": 204}


def test_a_destination_that_is_gone(receiver: type[_Receiver]) -> None:
    """410 disables it; a test that it takes enables it again."""
    receiver.status = 410
    done = webhooks("test", "ops")
    assert (done.exit_code, done.stderr) == (1, "weighbridge: ops answered 410; only 2xx is success\n")
    assert json.loads(webhooks("list", "--json").stdout)[0]["disabled"] is True
    receiver.status = 200
    assert webhooks("test", "ops").exit_code == 0
    assert json.loads(webhooks("list", "--json").stdout)[0]["disabled"] is False


def test_mistakes_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that nobody configured, a secret of another form, and one that is not there."""
    done = webhooks("test", "other")
    assert (done.exit_code, done.stderr) == (2, "weighbridge: there is no destination 'other'; there are: ops\n")
    monkeypatch.setenv("OPS_SECRET", "not like this")
    done = webhooks("test", "ops")
    assert done.exit_code == 1
    assert "destination `ops`: the secret must be `whsec_`" in done.stderr
    assert "not like this" not in done.output
    monkeypatch.delenv("OPS_SECRET")
    assert "its secret is not there" in webhooks("test", "ops").stderr
