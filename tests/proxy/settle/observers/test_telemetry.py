import subprocess
import sys
from pathlib import Path

import pytest

from proxy.settle.observers.telemetry import TelemetryUnavailable, build_tracing

_ROOT = Path(__file__).parents[4]


def test_without_an_endpoint_nothing_is_traced() -> None:
    """There is no tracing at all."""
    assert build_tracing(None) is None


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
