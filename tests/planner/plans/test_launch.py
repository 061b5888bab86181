"""vLLM's command line, for the version that the extra names."""

import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from planner.plans.gpus import gpu_named
from planner.plans.launch import VLLM_VERSION, Launch, defaults_of, launch_of, on_loopback
from planner.plans.plan_errors import PlanRefused
from planner.plans.sizing import Limits

FLAGS = frozenset((Path(__file__).parent / "vllm_0_32_0_flags.txt").read_text().split())
ROOT = Path(__file__).parents[3]


def launched(**changes: Any) -> Launch:
    given: dict[str, Any] = {
        "repository": "meta-llama/Meta-Llama-3-70B-Instruct",
        "served_name": "llama-3-70b",
        "tp": 2,
        "precision": "fp8",
        "kv_precision": "fp8",
        "quantised": False,
        "max_context": 8192,
        "limits": Limits(sequences=128, batched_tokens=2048),
        "memory_utilisation": 0.92,
        "speculative": {"method": "ngram", "num_speculative_tokens": 4},
        "adapters": 4,
        "adapter_rank": 10,
        "kv_events_port": 5557,
    }
    return launch_of(**(given | changes))


def test_no_two_ranks_bind_one_port() -> None:
    """Each binds both of its ports plus its number: replays begin after the last rank's events."""
    words = launched(dp=4).arguments
    events = json.loads(words[words.index("--kv-events-config") + 1])
    assert (events["endpoint"], events["replay_endpoint"]) == ("tcp://*:5557", "tcp://*:5561")
    assert (launched(dp=4).ranks, launched().ranks) == (4, 1)


def test_the_version_is_the_extras() -> None:
    """pyproject.toml and the plans name the same vLLM, and the flags' list is of that version."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["vllm"] == [f"vllm=={VLLM_VERSION}"]
    assert VLLM_VERSION == "0.32.0"


def test_every_flag_exists_in_that_version() -> None:
    """As listed from the wheel's own argument parser."""
    used = {word for word in launched().arguments if word.startswith("--")}
    assert used <= FLAGS
    assert len(used) > 18


def test_the_command_line_survives_a_shell() -> None:
    """What a shell splits it into is what was meant, JSON included."""
    launch = launched()
    words = shlex.split(launch.command)
    assert words[0] == "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
    assert tuple(words[3:]) == launch.arguments
    assert json.loads(words[words.index("--speculative-config") + 1])["method"] == "ngram"
    events = json.loads(words[words.index("--kv-events-config") + 1])
    # With a host other than * vLLM connects instead of listening.
    assert (events["endpoint"], events["replay_endpoint"]) == ("tcp://*:5557", "tcp://*:5558")


def test_precision_becomes_flags() -> None:
    """FP8 is made while loading, unless the weights are quantised already; the cache is told apart."""
    words = launched().arguments
    assert words[words.index("--quantization") + 1] == "fp8"
    assert words[words.index("--kv-cache-dtype") + 1] == "fp8"
    other = launched(quantised=True, kv_precision="bf16").arguments
    assert "--quantization" not in other
    assert other[other.index("--kv-cache-dtype") + 1] == "auto"


def test_an_adapters_rank_is_one_that_vllm_has() -> None:
    """The next larger one; beyond the largest it is refused."""
    words = launched().arguments
    assert words[words.index("--max-lora-rank") + 1] == "16"
    with pytest.raises(PlanRefused):
        launched(adapter_rank=1_000)


def test_what_is_off_leaves_no_flag() -> None:
    """No guesses, adapters or events."""
    words = launched(speculative=None, adapters=0, kv_events_port=None)
    assert not {"--speculative-config", "--enable-lora", "--kv-events-config"} & set(words.arguments)
    assert words.environment == {}


@pytest.mark.parametrize(
    "change",
    [
        {"repository": "--trust-remote-code"},
        {"repository": "a b"},
        {"repository": "$(id)"},
        {"served_name": "-x"},
        {"served_name": ""},
        {"served_name": "a\nb"},
    ],
)
def test_names_that_would_be_flags_or_worse_are_refused(change: dict[str, str]) -> None:
    """Nothing that somebody typed becomes syntax."""
    with pytest.raises(PlanRefused):
        launched(**change)


@pytest.mark.parametrize(
    ("gpu", "sequences", "tokens"),
    [
        ("b200", 1_024, 16_384),
        ("h100", 1_024, 8_192),
        ("h200", 1_024, 8_192),
        ("a100", 256, 2_048),
        ("l40s", 256, 2_048),
    ],
)
def test_vllms_own_defaults_are_known(gpu: str, sequences: int, tokens: int) -> None:
    """As `EngineArgs.get_batch_defaults` of 0.32 has them for its server."""
    assert defaults_of(gpu_named(gpu)) == Limits(sequences=sequences, batched_tokens=tokens)


def test_on_ones_own_machine_nothing_listens_beyond_it() -> None:
    """The loopback, and no KV events: vLLM binds their sockets to every address or to none."""
    command = on_loopback(("vllm", "serve", *launched().arguments))
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert "--kv-events-config" not in command
    assert not any("5557" in word for word in command)
    assert on_loopback(("other", "--x")) == ("other", "--x")


@pytest.mark.parametrize("backend", ["native", "lmcache"])
def test_kv_blocks_may_go_to_main_memory(backend: str) -> None:
    """By vLLM itself or by LMCache, in its own flags; without a size there is none."""
    words = launched(kv_offload_gib=200, kv_offload=backend).arguments
    assert words[words.index("--kv-offloading-size") + 1] == "200"
    assert words[words.index("--kv-offloading-backend") + 1] == backend
    assert {word for word in words if word.startswith("--")} <= FLAGS
    assert not any("offloading" in word for word in launched().arguments)
