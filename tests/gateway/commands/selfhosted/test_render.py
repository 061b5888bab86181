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
    """Word for word, but that it listens on the loopback only and publishes no KV events."""
    words = shlex.split(invoked("render", "command", "--plan", str(plan_file), "--pool", "h100").stdout)
    planned = ["vllm", "serve", *json.loads(plan_file.read_text())["launch"]["arguments"]]
    assert set(words) - set(planned) == {"127.0.0.1"}
    assert {"0.0.0.0", "--kv-events-config"} < set(planned) - set(words)  # noqa: S104 - in its own pod


def test_a_configured_pool_is_rendered() -> None:
    """With its own command and as many GPUs as its bill says."""
    result = invoked("render", "k8s", "--pool", "h100")
    assert result.exit_code == 0, result.output
    (deployment,) = [each for each in yaml.safe_load_all(result.stdout) if each["kind"] == "Deployment"]
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


def test_a_plans_pool_is_safe_as_it_comes(plan_file: Path) -> None:
    """Without a further word: a key, the planned GPU, KV events for the gateway; what is missing is told beside it."""
    result = invoked("render", "k8s", "--plan", str(plan_file), "--pool", "h100")
    found = {each["kind"]: each for each in yaml.safe_load_all(result.stdout)}
    spec = found["Deployment"]["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert "VLLM_API_KEY" in {each["name"] for each in spec["containers"][0]["env"]}
    assert {each["name"] for each in spec["containers"][0]["ports"]} == {"http", "kv-events", "kv-replay"}
    assert "gated" in result.stderr
    assert "NetworkPolicy" in found


def test_what_one_wants_otherwise_can_be_said(plan_file: Path) -> None:
    """Another GPU's label, a cloud's own, spot nodes, no key."""
    words = ["render", "k8s", "--plan", str(plan_file), "--pool", "h100", "--key-secret", "none", "--spot"]
    found = {each["kind"]: each for each in yaml.safe_load_all(invoked(*words, "--gpu", "h200").stdout)}
    spec = found["Deployment"]["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H200"}
    assert "VLLM_API_KEY" not in {each["name"] for each in spec["containers"][0]["env"]}
    assert spec["priorityClassName"] == "weighbridge-batch"
    labelled = invoked(*words, "--node-label", "cloud.google.com/gke-accelerator=nvidia-h100-80gb")
    assert "gke-accelerator: nvidia-h100-80gb" in labelled.stdout
    assert invoked(*words, "--node-label", "oops").exit_code == 1


def test_what_a_cluster_has_can_be_said(plan_file: Path) -> None:
    """A digest, a mirror, taints, no spare GPUs, a Gateway: each option is in what is rendered, and no warning is left of it."""
    digest = f"registry.example.com/vllm@sha256:{'a' * 64}"
    words = ["render", "k8s", "--plan", str(plan_file), "--pool", "h100", "--token-secret", "hf", "--image", digest]
    words += ["--pull-secret", "registry", "--hub-cidr", "10.1.0.0/16", "--tolerate", "sku=gpu", "--no-surge"]
    words += ["--weights-gib", "80", "--inference-pool", "picker:9003", "--http-route", "gateways/public"]
    result = invoked(*words)
    assert result.exit_code == 0, result.output
    found = {each["kind"]: each for each in yaml.safe_load_all(result.stdout)}
    spec = found["Deployment"]["spec"]["template"]["spec"]
    assert spec["containers"][0]["image"] == digest
    assert spec["volumes"][0]["emptyDir"]["sizeLimit"] == "104Gi"
    assert found["InferencePool"]["spec"]["endpointPickerRef"]["port"]["number"] == 9_003
    assert found["Deployment"]["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 0
    assert not any(word in result.stderr for word in ("sha256", "--hub-by-name", "gated"))
    for wrong, told_of in (
        (["--rdma", "rdma/ib"], "several nodes"),
        (["--hub-cidr", "huggingface.co"], "--hub-cidr"),
        (["--inference-pool", "picker"], "--http-route"),
    ):
        refused = invoked("render", "k8s", "--plan", str(plan_file), "--pool", "h100", *wrong)
        assert refused.exit_code == 1
        assert told_of in refused.stderr


def test_one_machine_is_rendered_with_its_gateway(plan_file: Path) -> None:
    """Compose, and the part of the configuration that belongs to it."""
    words = ["--plan", str(plan_file), "--pool", "h100", "--replicas", "2"]
    services = yaml.safe_load(invoked("render", "compose", *words).stdout)["services"]
    (pool,) = yaml.safe_load(invoked("render", "gateway", *words, "--one-machine").stdout)["selfhosted"]["pools"]
    assert {each["name"] for each in pool["replicas"]} == set(services) - {"gateway"}


def test_the_sides_of_a_divided_plan_are_rendered_one_by_one(tmp_path: Path) -> None:
    """As many replicas as planned; a plan that cannot be divided, and what is not rendered so, are told."""
    divided, whole = tmp_path / "divided.json", tmp_path / "whole.json"
    load = ["--qps", "20", "--input-tokens", "2000", "--ttft-p99", "2", "--tpot-p99", "0.02"]
    divided.write_text(invoked("plan", *load, "--json").stdout)
    whole.write_text(invoked("plan", *load, "--kv-offload-gib", "10", "--json").stdout)
    for part, replicas in (("prefill", 3), ("decode", 3)):
        result = invoked("render", "k8s", "--plan", str(divided), "--pool", "h100", "--part", part)
        found = list(yaml.safe_load_all(result.stdout))
        (both,) = [each for each in found if (each["kind"], each["metadata"]["name"]) == ("Service", "h100")]
        (deployment,) = [each for each in found if each["kind"] == "Deployment"]
        assert both["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
        assert (deployment["metadata"]["name"], deployment["spec"]["replicas"]) == (f"h100-{part}", replicas)
        command = invoked("render", "command", "--plan", str(divided), "--pool", "h100", "--part", part).stdout
        assert "--kv-transfer-config" in command
    for what, file in (("k8s", whole), ("ray", divided)):
        refused = invoked("render", what, "--plan", str(file), "--pool", "h100", "--part", "decode")
        assert refused.exit_code != 0


SHARED = """\
classifier: {enabled: false}
providers:
  models:
    - {model_id: llama, provider: a, max_context_tokens: 8000, deployments: []}
    - {model_id: qwen, provider: a, max_context_tokens: 8000, deployments: []}
queues: {llama: {targets: [llama]}, qwen: {targets: [qwen]}}
selfhosted:
  pools:
    - {name: llama, targets: [llama], launch: {command: [vllm, serve, org/llama, --port, "{port}"]}}
    - {name: qwen, targets: [qwen], launch: {command: [vllm, serve, org/qwen, --port, "{port}"]}}
  shared_gpus: [{name: box, pools: [llama, qwen], level: 2}]
"""


def test_pools_that_share_gpus_are_rendered_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the name of what they share; one of them alone is refused, and so is what starts replicas by itself."""
    (tmp_path / "shared.yaml").write_text(SHARED)
    monkeypatch.setenv("WEIGHBRIDGE_CONFIG", str(tmp_path / "shared.yaml"))
    result = invoked("render", "k8s", "--pool", "box", "--namespace", "inference", "--key-secret", "keys")
    assert result.exit_code == 0, result.output
    documents = list(yaml.safe_load_all(result.stdout))
    assert [each["kind"] for each in documents].count("Service") == 2
    engines = next(each for each in documents if each["kind"] == "Deployment")["spec"]["template"]["spec"]
    names = [each["name"] for each in (*engines["initContainers"], *engines["containers"])]
    assert names == ["llama", "qwen"]
    assert {each["metadata"].get("namespace") for each in documents if each["kind"] != "PriorityClass"} == {"inference"}
    assert "llama-0" in yaml.safe_load(invoked("render", "compose", "--pool", "box").stdout)["services"]
    refused = invoked("render", "k8s", "--pool", "qwen")
    assert refused.exit_code != 0
    assert "--pool box" in refused.output
    assert "selfhosted run" in invoked("render", "ray", "--pool", "box").output


def test_what_fits_on_shared_gpus_is_told() -> None:
    """As a table, and whole as JSON."""
    result = invoked("share", "llama-3-8b", "qwen2.5-7b", "--gpu", "l40s")
    assert result.exit_code == 0, result.output
    assert "--gpu-memory-utilization 0.89" in result.stdout
    found = json.loads(invoked("share", "llama-3-8b", "qwen2.5-7b", "--gpu", "l40s", "--level", "2", "--json").stdout)
    assert (found["level"], found["main_memory_bytes"], len(found["lodgers"])) == (2, 0, 2)
