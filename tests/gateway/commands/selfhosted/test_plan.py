"""`weighbridge selfhosted plan`: a table with reasons for people, everything as data for programs."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gateway.cli import app


def invoked(*words: str) -> Result:
    return CliRunner().invoke(app, ["selfhosted", "plan", *words])


def told(*words: str) -> dict[str, Any]:
    result = invoked(*words, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_people_are_told_each_choice_and_why() -> None:
    """Sizes, latency, alternatives, dollars, verdicts, the command line and warnings."""
    result = invoked("--qps", "20", "--ttft-p99", "1", "--tpot-p99", "0.05", "--comparator", "gpt-6-luna")
    assert result.exit_code == 0
    for text in (
        "tensor parallel",
        "2 x 80 layers x 8 KV heads x 128",
        "M/G/1",
        "TTFT p99",
        "impossible",
        "a million tokens",
        "vLLM 0.32.0:",
        "--tensor-parallel-size 2",
        "! ",
    ):
        assert text in result.stdout


def test_programs_are_told_everything_in_full() -> None:
    """Bytes and dollars unrounded."""
    found = told("--qps", "20", "--overhead", "1.3")
    assert found["memory"]["kv_bytes_per_token"] == 163_840
    assert found["memory"]["weight_bytes"] == 72_655_052_800
    assert found["model"]["parameters"] == 70_553_706_496
    assert found["cost"]["usd_per_hour"] == pytest.approx(found["gpus"] * 2.95 * 1.3)
    assert found["launch"]["command"].startswith("vllm serve meta-llama/Meta-Llama-3-70B-Instruct ")


def test_a_mixture_is_planned_on_paper() -> None:
    """100,000 requests/s at the stated throughput."""
    words = ["--qps", "100000", "--input-tokens", "800", "--output-tokens", "200", "--gpu-usd-hour", "4"]
    words += ["--mix", "llama-3-8b:0.7,llama-3-70b:0.3"]
    words += ["--tokens-per-gpu", "llama-3-8b=3000", "--tokens-per-gpu", "llama-3-70b=600"]
    found = told(*words)
    assert [part["gpus"] for part in found["parts"]] == [23_334, 50_000]
    assert found["usd_per_year"] == 2_569_623_360
    assert "23,334" in invoked(*words).stdout


def test_a_wrong_document_is_told_why() -> None:
    """2.5 MB a token ignores GQA."""
    assert "ignores GQA" in invoked("--check-kv-bytes", "2621440").stdout
    assert "8 times" in invoked("--kv-heads", "64", "--tpot-p99", "0.2", "--ttft-p99", "5").stdout


def test_a_model_of_ones_own_is_read(tmp_path: Path) -> None:
    """From its config.json; one without KV heads is doubted."""
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {
                "hidden_size": 4096,
                "num_attention_heads": 32,
                "num_hidden_layers": 32,
                "intermediate_size": 11008,
                "vocab_size": 32000,
                "max_position_embeddings": 4096,
            }
        )
    )
    found = told("--config-json", str(path), "--model", "mine", "--qps", "1")
    assert found["model"]["kv_heads"] == 32
    assert any("num_key_value_heads" in warning for warning in found["warnings"])


@pytest.mark.parametrize(
    ("words", "told_of"),
    [
        (["--model", "llama-9"], "llama-9"),
        (["--gpu", "h9000"], "h9000"),
        (["--tp", "many"], "--tp"),
        (["--gpu-usd-hour", "cheap"], "--gpu-usd-hour"),
        (["--overhead", "0.5"], "--overhead"),
        (["--comparator", "nobody"], "nobody"),
        (["--ttft-p99", "0.001"], "cannot do this"),
        (["--mix", "llama-3-8b:0.5"], "add up"),
        (["--efficiency", "wishful"], "wishful"),
        (["--weights", "--oops"], "repository"),
        (["--tokens-per-gpu", "1", "--tokens-per-gpu", "2"], "once"),
    ],
)
def test_what_cannot_be_planned_is_told_in_a_line(words: list[str], told_of: str) -> None:
    """With status 1 and no traceback."""
    result = invoked(*words)
    assert result.exit_code == 1
    assert told_of in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("text", ["not json", "[]", "{}"])
def test_a_config_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    """By name."""
    path = tmp_path / "config.json"
    path.write_text(text)
    result = invoked("--config-json", str(path))
    assert result.exit_code == 1
    assert "config.json" in result.stderr


def test_prefill_and_decode_apart_are_printed_when_asked_for_and_hinted_at_where_they_pay() -> None:
    """With both command lines; where it cannot be, only who asks is told why."""
    words = ["--qps", "20", "--input-tokens", "2000", "--ttft-p99", "2", "--tpot-p99", "0.02"]
    assert "own would need 24 GPUs instead of 40: --split" in invoked(*words).stdout
    result = invoked(*words, "--split")
    for text in (
        "both",
        "24 GPUs instead of 40",
        '"kv_role":"kv_producer"',
        '"kv_role":"kv_consumer"',
        "SIDE_CHANNEL_HOST",
    ):
        assert text in result.stdout
    found = told(*words, "--split")["split"]
    assert (found["pays"], found["gpus"], found["together_gpus"]) == (True, 24, 40)
    assert "--kv-transfer-config" in found["decode"]["launch"]["command"]
    assert told("--kv-offload-gib", "10")["split"] is None
    refused = invoked("--kv-offload-gib", "10", "--split")
    assert refused.exit_code != 0
