"""Each test begins without variables of the gateway."""

import os

import pytest


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("WEIGHBRIDGE_") or name in {"DATABASE_URL", "REDIS_URL", "OTEL_EXPORTER_OTLP_ENDPOINT"}:
            monkeypatch.delenv(name)
