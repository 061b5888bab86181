"""The file for Docker Compose and Podman: what it mounts is there, what it is given is asked for, and the gateway takes its configuration."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.nursery import nursery

FOLDER: Final = Path(__file__).parents[2] / "deploy" / "compose"
SECRETS: Final = ("WEIGHBRIDGE_PEPPER", "POSTGRES_PASSWORD", "REDIS_PASSWORD", "GRAFANA_PASSWORD", "OPENAI_API_KEY")
_GRACE_S: Final = 25


def composed() -> Any:
    """The file, with its merges."""
    return yaml.safe_load((FOLDER / "compose.yaml").read_text())


def interpolated(text: str, values: Mapping[str, str]) -> str:
    """As compose does it, for the two forms that the file has. Raises KeyError for what has to be given and is not."""

    def value(found: re.Match[str]) -> str:
        return values.get(found[1]) or found[3] if found[2] == ":-" else values[found[1]]

    return re.sub(r"\$\{(\w+)(:-|:\?)([^}]*)\}", value, text).replace("$$", "$")


@pytest.mark.parametrize("name", list(composed()["services"]))
def test_each_service_is_confined(name: str) -> None:
    """A root that cannot be written to, no capability, a log with an end, a health check, an image with a version."""
    service = composed()["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["logging"]["options"].keys() == {"max-size", "max-file"}
    assert service["restart"] == "unless-stopped"
    assert name == "gateway" or service["healthcheck"]["test"][0] in {"CMD", "CMD-SHELL"}
    image = interpolated(service["image"], {})
    version = image.rpartition(":")[2]
    assert version[:1].isdigit() or version.startswith("v")
    for other, needs in service.get("depends_on", {}).items():
        assert other in composed()["services"]
        assert needs == {"condition": "service_healthy"}
    assert all(each.startswith("127.0.0.1:") for each in service.get("ports", ()))


def test_what_is_mounted_is_there() -> None:
    """A mount of a file that is not there is a folder that the runtime makes, and a start that nobody understands."""
    composition = composed()
    for service in composition["services"].values():
        for mount in service.get("volumes", ()):
            source, target, *_ = mount.split(":")
            assert target.startswith("/")
            if source.startswith("."):
                assert (FOLDER / source).exists(), source
                assert mount.endswith(":ro")
            else:
                assert source in composition["volumes"]
    assert set(composition["volumes"]) == {
        mount.split(":")[0]
        for service in composition["services"].values()
        for mount in service.get("volumes", ())
        if not mount.startswith(".")
    }


def test_no_secret_has_a_default() -> None:
    """What nobody chose is what everybody knows. Each one is asked for, told of in the example, and empty there."""
    text = (FOLDER / "compose.yaml").read_text()
    asked = set(re.findall(r"\$\{(\w+):\?", text))
    assert asked == set(SECRETS)
    assert set(re.findall(r"\$\{(\w+)[}:]", text)) - asked == {"WEIGHBRIDGE_IMAGE", "WEIGHBRIDGE_EXTRAS"}
    example = (FOLDER / ".env.example").read_text()
    assert set(re.findall(r"^(\w+)=$", example, re.MULTILINE)) == asked
    assert set(re.findall(r"^#(\w+)=", example, re.MULTILINE)) == {"WEIGHBRIDGE_IMAGE", "WEIGHBRIDGE_EXTRAS"}
    ignored = subprocess.run(["git", "check-ignore", "-q", str(FOLDER / ".env")], cwd=FOLDER, check=False)
    assert ignored.returncode == 0


def gateway_environment(values: Mapping[str, str]) -> dict[str, str]:
    """What the gateway's container is given."""
    given = composed()["services"]["gateway"]["environment"]
    return {name: interpolated(text, values) for name, text in given.items()}


def test_the_gateway_takes_its_configuration() -> None:
    """`config check --strict` has nothing to say, with the variables that it is given and no other."""
    given = gateway_environment(dict.fromkeys(SECRETS, "s" * 64))
    done = nursery().run(
        ["config", "check", str(FOLDER / "gateway.yaml"), "--strict"],
        environ={"PATH": os.environ["PATH"], **given},
        cwd=FOLDER,
        timeout_s=60,
    )
    assert (done.returncode, "ok" in done.stdout) == (0, True), done.stdout + done.stderr


def test_times_and_addresses_agree() -> None:
    """The gateway has the time to drain that it asks for, and Prometheus the address where it tells."""
    gateway = composed()["services"]["gateway"]
    configuration = yaml.safe_load((FOLDER / "gateway.yaml").read_text())
    assert gateway["stop_grace_period"] == f"{configuration['server']['drain_s'] + _GRACE_S}s"
    port = configuration["telemetry"]["metrics_listen"].rpartition(":")[2]
    scraped = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    assert scraped["scrape_configs"][0]["static_configs"][0]["targets"] == [f"gateway:{port}"]
    assert not any(port in each for each in gateway["ports"]), "it is open to whoever reaches it"
    (source,) = yaml.safe_load((FOLDER / "grafana" / "datasources.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert source["type"] == "prometheus"
    (boards,) = yaml.safe_load((FOLDER / "grafana" / "dashboards.yaml").read_text())["providers"]
    assert any(
        mount.split(":")[1] == boards["options"]["path"] for mount in composed()["services"]["grafana"]["volumes"]
    )


def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    """Its own checker reads the file, and the rules from where they are mounted."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("Debian's prometheus is not installed")
    rules = FOLDER.parents[1] / "dashboards" / "monitoring" / "prometheus" / "weighbridge.rules.yml"
    text = (FOLDER / "prometheus.yml").read_text()
    assert "/etc/prometheus/weighbridge.rules.yml" in text
    (tmp_path / "prometheus.yml").write_text(text.replace("/etc/prometheus/weighbridge.rules.yml", str(rules)))
    done = subprocess.run(
        [promtool, "check", "config", str(tmp_path / "prometheus.yml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_compose_reads_it(tmp_path: Path) -> None:
    """A reader of compose files makes the same of it, and refuses to begin without a secret."""
    reader = shutil.which("podman-compose") or shutil.which(
        "podman-compose", path=FOLDER.parents[1] / ".venv-release" / "bin"
    )
    if reader is None:
        pytest.skip("podman-compose is not there: `make wheels` installs it in .venv-release")

    def read(names: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        (tmp_path / "env").write_text("".join(f"{name}={'s' * 64}\n" for name in names))
        command = [reader, "--env-file", str(tmp_path / "env")]
        return subprocess.run(
            [*command, "--file", str(FOLDER / "compose.yaml"), "config"],
            capture_output=True,
            text=True,
            check=False,
            cwd=FOLDER,
        )

    done = read(SECRETS)
    assert done.returncode == 0, done.stderr
    read_back = yaml.safe_load(done.stdout)
    assert read_back["services"].keys() == composed()["services"].keys()
    assert read_back["services"]["gateway"]["environment"] == gateway_environment(dict.fromkeys(SECRETS, "s" * 64))
    assert "see .env.example" in read(SECRETS[1:]).stderr
    assert json.dumps(read_back)
