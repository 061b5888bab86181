"""`weighbridge selfhosted plan`: a table with reasons for people, everything as data for programs."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gateway.cli import app
from tests.gateway.commands.test_savings_simulate import CONFIG


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


OWNER = ("--users", "10000", "--team-peak", "2000", "--think-time", "30", "--tpot-p99", "0.05")


def test_the_owners_question_is_one_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand users, one team at two thousand: replicas, whole nodes, dollars a year by each way to buy them, and the bills
    elsewhere, commercial and routed.
    """
    monkeypatch.delenv("WEIGHBRIDGE_CONFIG", raising=False)
    result = invoked(*OWNER)
    assert result.exit_code == 0, result.output
    for text in (
        "10,000 users: 30 s of thought",
        "one team's peak, 2,000 users",
        f"nodes of 8 GPUs, paid as whole nodes: {told(*OWNER)['year']['gpus']} GPUs at the peak",
        "on demand by the hour",
        "reserved, the others by the hour",
        "ServeGen",
        "GPT-4o ",
        "routed without GPUs: ",
    ):
        assert text in result.stdout
    found = told(*OWNER)
    users, year = found["users"], found["year"]
    assert users["requests_per_s"] * (30 + users["response_s"]) == pytest.approx(10_000, rel=0.01)
    assert found["requests_per_s"] == users["requests_per_s"]
    # By hand: replicas to nodes, nodes to dollars.
    gpus = found["gpus"] // found["replicas"]
    assert f"an hour at the peak, paid by the GPU: {found['gpus']} GPUs at " in result.stdout
    assert year["nodes"] == -(-found["replicas"] // (8 // gpus))
    bills = {each["how"]: each["usd_per_year"] for each in year["purchases"]}
    assert bills["reserved"] == pytest.approx(year["nodes"] * 8 * 2.35 * 8_760)
    assert bills["on demand by the hour"] < year["nodes"] * 8 * 2.95 * 8_760
    assert bills[year["cheapest"]] == min(bills.values())
    elsewhere = {each["name"]: each["usd_per_year"] for each in year["alternatives"]}
    assert elsewhere["gpt-4o"] == pytest.approx(year["requests"] * (1_000 * 2.5 + 300 * 10) / 1e6)
    # Routing costs less than its baseline and more than the cheapest model for all of them.
    assert elsewhere["gpt-4o-mini"] < elsewhere["routed"] < elsewhere["gpt-4o"]


def test_the_routed_bill_is_that_of_the_configurations_models(tmp_path: Path) -> None:
    """Named, at one's own prices; a configuration that is not there is told."""
    path = tmp_path / "c.yaml"
    path.write_text(CONFIG % (0, "1"))
    found = told(*OWNER, "--config", str(path))
    (routed,) = [each for each in found["year"]["alternatives"] if each["name"] == "routed"]
    assert routed["title"] == "routed without GPUs: middle 70 %, large 30 %"
    by_hand = 0.7 * (1_000 * 1 + 300 * 5) / 1e6 + 0.3 * (1_000 * 5 + 300 * 20) / 1e6
    assert routed["usd_per_year"] == pytest.approx(by_hand * found["year"]["requests"], rel=0.01)
    missing = invoked(*OWNER, "--config", str(tmp_path / "none.yaml"))
    assert missing.exit_code != 0
    assert "none.yaml" in missing.stderr
    assert "Traceback" not in missing.output


def test_hours_and_prices_of_ones_own_are_taken() -> None:
    """And a price on demand of one's own is not set beside another's for reserved hours."""
    flat = told("--qps", "20", "--hours", ",".join(["1"] * 24), "--gpu-usd-hour", "3", "--reserved-usd-hour", "2")[
        "year"
    ]
    bills = {each["how"]: each["usd_per_year"] for each in flat["purchases"]}
    assert bills["reserved"] * 3 == bills["on demand by the hour"] * 2
    assert flat["cheapest"] == "reserved"
    alone = told("--qps", "20", "--gpu-usd-hour", "3")["year"]
    assert [each["how"] for each in alone["purchases"]] == ["on demand by the hour"]
    assert "--reserved-usd-hour" in alone["reserved_source"]


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
        (["--users", "10000"], "--think-time"),
        (["--think-time", "30"], "--users"),
        (["--team-peak", "2000"], "--users"),
        (["--users", "10", "--think-time", "30", "--team-peak", "11"], "--team-peak"),
        (["--users", "10", "--think-time", "30", "--qps", "5"], "--qps"),
        (["--users", "10", "--think-time", "30", "--tier", "batch"], "batch"),
        (["--users", "10", "--think-time", "30", "--mix", "llama-3-8b:1"], "--mix"),
        (["--hours", "1,2,3"], "--hours is 24 or 168"),
        (["--reserved-usd-hour", "cheap"], "--reserved-usd-hour"),
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
