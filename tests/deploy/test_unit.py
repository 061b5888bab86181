"""The unit for systemd: its own checker takes it, and what it promises is what the gateway needs."""

import configparser
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from gateway.configuration.gateway_config import ServerConfig

UNIT: Final = Path(__file__).parents[2] / "deploy" / "weighbridge.service"
_GRACE_S: Final = 25
_MOST_EXPOSED: Final = 2.0


def keys() -> configparser.SectionProxy:
    """The section that says how it is run."""
    read = configparser.ConfigParser(strict=False, interpolation=None, delimiters="=")
    read.optionxform = str  # type: ignore[assignment,method-assign]
    read.read_string(UNIT.read_text())
    return read["Service"]


def analyzed(tmp_path: Path, *arguments: str) -> str:
    """What systemd's checker says of it, with a command that is there."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd is not installed here")
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/weighbridge/bin/weighbridge", "/bin/true"))
    done = subprocess.run([program, *arguments, str(copy)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_systemd_takes_it(tmp_path: Path) -> None:
    """Without a warning: a key that is not known would be one without effect."""
    assert UNIT.name not in analyzed(tmp_path, "verify", "--man=no")


def test_it_is_confined(tmp_path: Path) -> None:
    """By systemd's own measure, from 0 to 10."""
    told = analyzed(tmp_path, "security", "--offline=true")
    level = re.search(r"Overall exposure level.*?: ([0-9.]+)", told)
    assert level is not None
    assert float(level[1]) <= _MOST_EXPOSED


def test_what_the_gateway_needs() -> None:
    """Time to drain, a folder that outlives its user, a reload, and the signal for its supervisor alone."""
    service = keys()
    assert float(service["TimeoutStopSec"]) == ServerConfig().drain_s + _GRACE_S
    assert service["DynamicUser"] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert service["StateDirectory"] == "weighbridge"
    assert "WEIGHBRIDGE_DATA_DIR=/var/lib/weighbridge" in UNIT.read_text()
    assert service["ExecReload"].endswith("/weighbridge reload")
    assert (service["KillMode"], service["KillSignal"]) == ("mixed", "SIGTERM")
    assert service["Restart"] == "on-failure"
