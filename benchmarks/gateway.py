"""The gateway under test, with everything on: keys, classifier, limits in memory, journal, SQLite."""

import os
import secrets
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import yaml

from benchmarks.processes import Child, Children

TEAM: Final = "team_bench"

_COMMAND: Final = (sys.executable, "-c", "from gateway.cli import app; app()")
_CLI_TIMEOUT_S: Final = 60.0


def gateway_config(upstream: str, folder: Path, port: int) -> dict[str, object]:
    """Return a configuration with two targets on the mock, a cheap one and a dear one, so that `auto` has something to
    decide.
    """
    return {
        "server": {"host": "127.0.0.1", "port": port, "workers": 1, "max_in_flight": 10_000, "drain_s": 2},
        "providers": {
            "models": [
                _model("bench-cheap", upstream, capability=0.6, prices={"input": 0.2, "output": 0.4}),
                _model("bench-dear", upstream, capability=1.0, prices={"input": 2.5, "output": 10}),
            ]
        },
        # Limits that are never reached are still counted for every request.
        "limits": {"key": {"requests_per_minute": 100_000_000, "tokens_per_minute": 100_000_000_000}},
        "cost": {"reference_target": "bench-dear", "journal_dir": str(folder / "journal")},
    }


def _model(model_id: str, upstream: str, *, capability: float, prices: dict[str, float]) -> dict[str, object]:
    return {
        "model_id": model_id,
        "provider": "bench",
        "prices": prices,
        "max_context_tokens": 128_000,
        "capability": capability,
        "deployments": [{"name": "mock", "kind": "vllm", "base_url": f"{upstream}/v1"}],
    }


def gateway_environ(folder: Path) -> dict[str, str]:
    return {"WEIGHBRIDGE_PEPPER": secrets.token_hex(32), "WEIGHBRIDGE_DATA_DIR": str(folder / "data")}


class StartedGateway(msgspec.Struct, frozen=True):
    child: Child
    url: str
    key: str


def start_gateway(
    children: Children,
    upstream: str,
    folder: Path,
    *,
    port: int,
    core: int | None,
    name: str = "gateway",
    more: Mapping[str, object] | None = None,
) -> StartedGateway:
    """Write a configuration, with `more` sections, make a team and a key, and start one worker. Raises RuntimeError."""
    config = folder / "gateway.yaml"
    config.write_text(yaml.safe_dump(gateway_config(upstream, folder, port) | dict(more or {}), sort_keys=False))
    environ = gateway_environ(folder)
    _cli(environ, "teams", "create", TEAM, "--json")
    made = _cli(environ, "keys", "create", TEAM, "--config", str(config), "--json")
    key: str = msgspec.json.decode(made)["key"]
    command = [*_COMMAND, "serve", "--config", str(config)]
    child = children.start(name, command, core=core, environ=environ)
    url = f"http://127.0.0.1:{port}"
    child.wait_ready(f"{url}/readyz")
    return StartedGateway(child, url, key)


def _cli(environ: dict[str, str], *arguments: str) -> bytes:
    done = subprocess.run(
        [*_COMMAND, *arguments],
        env={**os.environ, **environ},
        capture_output=True,
        timeout=_CLI_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"weighbridge {' '.join(arguments[:2])} failed\n{done.stderr.decode(errors='replace')[-2000:]}"
        )
    return done.stdout
