"""What plans write is read by vLLM's own parser, of the version that the extra names."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from planner.plans.gpus import gpu_named
from planner.plans.models import model_named
from planner.plans.planning import plan
from planner.plans.render_ray import engine_arguments
from planner.plans.sizing import Targets
from planner.plans.split import split_of
from tests.planner.plans.questions import question
from tests.planner.plans.test_launch import launched

PATIENT = Targets(ttft_p99_s=4.0, tpot_p99_s=0.2)


def _launches() -> dict[str, tuple[str, ...]]:
    """Command lines of every shape that a plan may have, without `vllm serve`."""
    asked = question()
    split = split_of(asked, plan(asked))
    return {
        "everything": launched().arguments,
        "nothing more": launched(speculative=None, adapters=0, kv_events_port=None).arguments,
        "KV cache in main memory": launched(speculative=None, kv_events_port=None, kv_offload_gib=64).arguments,
        "quantised weights": launched(quantised=True, kv_precision="bf16").arguments,
        "70B on H100": plan(asked).launch.arguments,
        "70B on A100": plan(question(gpu=gpu_named("a100"))).launch.arguments,
        "405B": plan(question(model=model_named("llama-3.1-405b"), targets=PATIENT)).launch.arguments,
        "experts": plan(question(model=model_named("mixtral-8x7b"))).launch.arguments,
        "reads prompts": split.prefill.launch.arguments,
        "answers": split.decode.launch.arguments,
    }


@pytest.fixture(scope="module")
def read() -> dict[str, tuple[Any, Any]]:
    """Of each line, what vLLM takes from the words and from Ray's mapping of them."""
    launches = _launches()
    asked = {
        "lines": [*map(list, launches.values()), ["m", "--no-such-flag", "1"]],
        "keywords": [{"model": words[0], **engine_arguments(words[1:])} for words in launches.values()],
    }
    # Told that it is offline it would look for the weights, which are not read here.
    environ = {**os.environ, "HF_HUB_OFFLINE": "0", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    ran = subprocess.run(
        [os.environ["WB_VLLM_PYTHON"], str(Path(__file__).with_name("parser.py"))],
        input=json.dumps(asked), capture_output=True, text=True, env=environ, timeout=240, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3_000:]
    told = json.loads(ran.stdout.splitlines()[-1])
    *lines, wrong = told["lines"]
    assert "--no-such-flag" in wrong
    return dict(zip(launches, zip(lines, told["keywords"], strict=True), strict=True))


def test_every_line_is_taken(read: dict[str, tuple[Any, Any]]) -> None:
    """Words, numbers and JSON, each as what it was meant to be."""
    assert {name: line for name, (line, _) in read.items() if isinstance(line, str)} == {}
    line = read["everything"][0]
    assert (line["tensor_parallel_size"], line["max_num_seqs"], line["max_lora_rank"]) == (2, 128, 16)
    assert (line["scheduling_policy"], line["quantization"], line["kv_cache_dtype"]) == ("priority", "fp8", "fp8")
    assert line["kv_events_config"]["endpoint"] == "tcp://*:5557"
    assert read["405B"][0]["pipeline_parallel_size"] * read["405B"][0]["tensor_parallel_size"] >= 8
    assert read["KV cache in main memory"][0]["kv_offloading_size"] == 64


def test_ray_gives_the_engine_the_same(read: dict[str, tuple[Any, Any]]) -> None:
    """Its arguments are a mapping, which the server's flags are not of."""
    assert {name: mapping for name, (_, mapping) in read.items() if isinstance(mapping, str)} == {}
    for name, words in _launches().items():
        line, mapping = read[name]
        for field in engine_arguments(words[1:]):
            given, meant = mapping[field], line[field]
            # What is left out of an object is vLLM's default, which the parser fills in and the mapping leaves to it.
            assert given == meant if not isinstance(given, dict) else given.items() <= meant.items(), (name, field)
