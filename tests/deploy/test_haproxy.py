"""The file for HAProxy: HAProxy takes it, and it does to requests what they bear."""

import os
import re
import subprocess
from pathlib import Path

from gateway.configuration.gateway_config import ServerConfig
from proxy.http.connection import ConnectionLimits
from tests.haproxy import SHIPPED, haproxy_binary, written

_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}


def _seconds(setting: str) -> list[float]:
    """What is given after these words, in each section."""
    found = re.findall(rf"\b{setting} (\d+)(ms|s|m|h)\b", SHIPPED.read_text())
    return [int(number) * _S[unit] for number, unit in found]


def test_haproxy_takes_it(tmp_path: Path) -> None:
    command = [haproxy_binary(), "-c", "-f", str(written(tmp_path, 8080, [8081, 8082]))]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stdout + done.stderr


def test_what_a_host_may_have_paid_for_is_not_sent_again() -> None:
    """Of all reasons to try again, only a connection that was refused."""
    assert re.findall(r"^ *retry-on (.+)$", SHIPPED.read_text(), re.MULTILINE) == ["conn-failure"]


def test_silence_is_borne_for_longer_than_an_answer_may_take() -> None:
    """Whole answers have ten minutes; streams have a byte each `ping_after_s`. A gateway keeps a connection longer than HAProxy."""
    for setting in ("timeout client", "timeout server"):
        (given,) = _seconds(setting)
        assert given > 600 > ServerConfig().ping_after_s
    (kept,) = _seconds("timeout http-keep-alive")
    assert kept < ConnectionLimits().keep_alive_s


def test_a_stopping_host_serves_for_longer_than_haproxy_needs_to_see_it() -> None:
    """`fall` looks, and one interval for the first."""
    advised = float(re.findall(r"`server.leave_s: (\d+)`", SHIPPED.read_text())[0])
    (falls,) = set(re.findall(r"fall (\d+)", SHIPPED.read_text()))
    assert advised > _seconds("inter")[0] + (int(falls) - 1) * _seconds("fastinter")[0]
    assert _seconds("hard-stop-after")[0] > _seconds("timeout server")[0]
