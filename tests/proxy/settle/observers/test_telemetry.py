import subprocess
import sys
from pathlib import Path

import pytest

from proxy.settle.observers.telemetry import TelemetryUnavailable, Tracing, build_tracing
from tests.proxy.settle.observers.outcomes import an_outcome

_ROOT = Path(__file__).parents[4]


async def test_without_an_endpoint_nothing_is_traced() -> None:
    """What stands in for tracing sends nothing upstream."""
    tracing = build_tracing(None)
    assert type(tracing) is Tracing
    trace = tracing.begin("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    assert trace.headers() == {}
    trace.finish(an_outcome(), "auto", stream=True)
    await tracing.aclose()


def test_without_an_endpoint_opentelemetry_is_not_imported() -> None:
    """The base install works, and starts no slower, without the extra."""
    script = (
        "import sys, proxy.settle.observers.telemetry as t; t.build_tracing(''); print('opentelemetry' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=_ROOT)
    assert done.stdout.strip() == "False"


def test_a_missing_extra_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint without OpenTelemetry refuses to start, with the command that mends it."""
    monkeypatch.delitem(sys.modules, "proxy.settle.observers.otel_tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(TelemetryUnavailable, match=r"pip install 'weighbridge\[otel\]'"):
        build_tracing("http://collector:4318")
