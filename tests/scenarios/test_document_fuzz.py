"""Requests made up from the OpenAPI document by schemathesis, over the whole of it: no reply is a fault, none contradicts the document."""

import asyncio
import os
from pathlib import Path
from typing import Final

import pytest

from accounts.keys import Pepper
from accounts.pepper_file import pepper_id
from tests.running_gateway import CHEAP_PRICES, PEPPER, model, running_gateway
from tests.scenarios.conftest import Upstream

_PROGRAM: Final = Path(
    os.environ.get("WB_SCHEMATHESIS", Path(__file__).parents[2] / ".venv-schemathesis" / "bin" / "schemathesis")
)
_EXAMPLES: Final = 8
"""Requests of each kind for each operation."""
_CHECKS: Final = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
    "missing_required_header,unsupported_method"
)
_LONG_S: Final = 900


@pytest.fixture
def schemathesis() -> Path:
    if not _PROGRAM.exists():
        told = "no schemathesis: `make test-long` builds .venv-schemathesis from requirements/schemathesis.txt"
        pytest.fail(told) if os.environ.get("CI") else pytest.skip(told)
    return _PROGRAM


@pytest.mark.long
async def test_no_request_made_of_the_document_finds_a_fault(
    schemathesis: Path, tmp_path: Path, upstream: Upstream
) -> None:
    """As an administrator, who may do all that it has; the numbers are drawn from one seed."""
    secret = PEPPER.encode()
    pepper = Pepper(id=pepper_id(secret), secret=secret)
    house = [model("plain", [upstream.deployment("ok")], prices=CHEAP_PRICES)]
    async with running_gateway(tmp_path, house) as gateway:
        key = (await gateway.accounts.create_key("team_a", "admin", pepper, role="admin")).plaintext
        running = await asyncio.create_subprocess_exec(
            str(schemathesis),
            *("run", f"{gateway.url}/v1/openapi.json", "--url", gateway.url),
            *("--header", f"Authorization: Bearer {key}", "--checks", _CHECKS, "--max-examples", str(_EXAMPLES)),
            # /metrics has no keys, but a token of its own, or is open to this machine.
            *(
                "--exclude-path",
                "/metrics",
                "--phases",
                "examples,coverage,fuzzing",
                "--seed",
                "7",
                "--request-timeout",
                "30",
                "--no-color",
            ),
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            told, _ = await asyncio.wait_for(running.communicate(), _LONG_S)
        except TimeoutError:
            running.kill()
            told, _ = await running.communicate()
            pytest.fail(f"it did not end within {_LONG_S} s: {told[-2_000:].decode()}")
    assert running.returncode == 0, told[-20_000:].decode()
