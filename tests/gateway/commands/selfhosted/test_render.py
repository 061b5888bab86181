"""`weighbridge selfhosted render`: files from a plan or from the configuration."""

import json
import os
import shlex
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from gateway.cli import app

CONFIG = """\
classifier: {enabled: false}
providers:
  models:
    - {model_id: llama, provider: a, max_context_tokens: 8000, deployments: []}
    - {model_id: other, provider: a, max_context_tokens: 8000, deployments: []}
cost:
  pools:
    - {name: h100, targets: [llama], gpus_per_replica: 4, usd_per_gpu_hour: 3, seconds_per_million: {input: 1, output: 2}}
selfhosted:
  pools:
    - name: h100
      targets: [llama]
      launch: {command: [vllm, serve, org/llama, --port, "{port}"]}
    - {name: bare, targets: [other]}
"""


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("WEIGHBRIDGE_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    (tmp_path / "c.yaml").write_text(CONFIG)
    monkeypatch.setenv("WEIGHBRIDGE_CONFIG", str(tmp_path / "c.yaml"))


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    """As `plan --json` prints it."""
    path = tmp_path / "plan.json"
    path.write_text(invoked("plan", "--qps", "5", "--json").stdout)
    return path


def invoked(*words: str) -> Result:
    return CliRunner().invoke(app, ["selfhosted", *words])


@pytest.mark.parametrize("what", ["k8s", "ray", "compose", "gateway"])
def test_each_kind_is_rendered_from_a_plan(plan_file: Path, what: str) -> None:
    """As YAML, and as the same data in JSON."""
    words = ["render", what, "--plan", str(plan_file), "--pool", "h100", "--replicas", "2"]
    result = invoked(*words)
    assert result.exit_code == 0, result.output
    documents = list(yaml.safe_load_all(result.stdout))
    found = json.loads(invoked(*words, "--json").stdout)
    assert found == (documents if len(documents) > 1 else documents[0])


def test_the_command_is_the_plans(plan_file: Path) -> None:
    """Word for word."""
    words = shlex.split(invoked("render", "command", "--plan", str(plan_file), "--pool", "h100").stdout)
    assert words == ["vllm", "serve", *json.loads(plan_file.read_text())["launch"]["arguments"]]


def test_a_configured_pool_is_rendered() -> None:
    """With its own command and as many GPUs as its bill says."""
    result = invoked("render", "k8s", "--pool", "h100")
    assert result.exit_code == 0, result.output
    deployment = next(yaml.safe_load_all(result.stdout))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["serve", "org/llama", "--port", "8000"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 4


@pytest.mark.parametrize(
    ("words", "told_of"),
    [
        (["k8s", "--pool", "nobody"], "h100"),
        (["k8s", "--pool", "bare"], "--plan"),
        (["gateway", "--pool", "h100"], "--plan"),
        (["ray", "--pool", "h100"], "--plan"),
        (["k8s", "--pool", "h100", "--namespace", "Not A Name"], "namespace"),
        (["k8s", "--pool", "h100", "--plan", "c.yaml"], "c.yaml"),
    ],
)
def test_what_cannot_be_rendered_is_told(
    words: list[str], told_of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With status 1 and what to do instead."""
    monkeypatch.chdir(tmp_path)
    result = invoked("render", *words)
    assert result.exit_code == 1
    assert told_of in result.stderr
