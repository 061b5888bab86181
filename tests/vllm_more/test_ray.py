"""A rendered application in Ray's own hands: its types take it as it is, and Ray Serve starts it on a tiny engine for CPUs."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any, Final

import msgspec

from planner.plans.render_ray import ray_serve
from tests.planner.plans.test_serving import planned
from tests.vllm.engines import CONTEXT_TOKENS, free_port
from tests.vllm_more.conftest import MADE, PYTHON

_APPLICATION: Final = Path(__file__).with_name("ray_application.py")


async def _in_ray(*words: str) -> str:
    """What the other side prints. Whatever it started ends with it."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0", "VLLM_NO_USAGE_STATS": "1"}
    child = await asyncio.create_subprocess_exec(
        PYTHON,
        str(_APPLICATION),
        *words,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        told, _ = await child.communicate()
    finally:
        if child.returncode is None:
            os.killpg(child.pid, signal.SIGKILL)
    assert child.returncode == 0, told.decode()[-4_000:]
    return told.decode()


async def test_rays_types_take_a_rendered_application(tmp_path: Path) -> None:
    """As a plan for H100 gives it; and each of the engine's arguments is one of vLLM's."""
    file = tmp_path / "ray.json"
    file.write_text(json.dumps(ray_serve(planned())))
    found = json.loads((await _in_ray("check", str(file))).splitlines()[-1])
    assert not found["unknown"]
    assert {"tensor_parallel_size", "max_num_seqs", "kv_cache_dtype", "scheduling_policy"} <= set(found["known"])


async def test_ray_serve_starts_a_rendered_application(tmp_path: Path) -> None:
    """On a Ray of its own, with what CPUs need beside what is rendered; it answers a chat."""
    command = (
        "vllm",
        "serve",
        "tiny",
        "--max-model-len",
        str(CONTEXT_TOKENS),
        "--max-num-seqs",
        "4",
        "--enforce-eager",
    )
    serving = planned(command=(*command, "--block-size", "32", "--num-gpu-blocks-override", "256"))
    serving = msgspec.structs.replace(
        serving,
        gpu_title=None,
        model="tiny",
        repository=str(MADE / "model"),
        replicas=1,
        min_replicas=1,
        max_replicas=1,
        environment={"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"},
    )
    document = ray_serve(serving)
    config: dict[str, Any] = document["applications"][0]["args"]["llm_configs"][0]
    # Without GPUs Ray has to be told so, and vLLM's own processes do what Ray's would on several nodes.
    config["placement_group_config"] = {"bundles": [{"CPU": 1}]}
    config["engine_kwargs"]["distributed_executor_backend"] = "mp"
    file = tmp_path / "ray.json"
    file.write_text(json.dumps(document))
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
    told = await _in_ray("serve", str(file), json.dumps(body), str(free_port()))
    answer = json.loads(next(line for line in told.splitlines() if line.startswith("ANSWER ")).removeprefix("ANSWER "))
    assert answer["model"] == "tiny"
    assert answer["usage"]["completion_tokens"] == 5
