import re
from pathlib import Path

from gateway.wiring.metrics import all_metrics

_ROOT = Path(__file__).parents[3]


def test_every_metric_is_documented() -> None:
    """docs/observability.md names each metric that /metrics can show, and no other of ours."""
    text = (_ROOT / "docs" / "observability.md").read_text()
    documented = set(re.findall(r"^- `(weighbridge_[a-z_]+|process_[a-z_]+)`", text, re.MULTILINE))
    body, _ = all_metrics().requests.render()
    declared = set(re.findall(r"^# TYPE (\S+)", body.decode(), re.MULTILINE))
    assert documented == declared
