"""Runs in the environment that has Ray: holds an application against Ray's own types, or serves it and asks it once.

`python ray_application.py check FILE` prints the engine's arguments as vLLM takes them; `serve FILE BODY PORT` starts a Ray of its own, prints
the answer to the chat BODY, and stops.
"""

import argparse
import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve.llm import LLMConfig, build_openai_app
from ray.serve.schema import ServeDeploySchema
from vllm.engine.arg_utils import AsyncEngineArgs


def _configs(document: dict[str, Any]) -> list[Any]:
    applications = ServeDeploySchema.model_validate(document).applications
    return [LLMConfig.model_validate(each) for found in applications for each in found.args["llm_configs"]]


def _check(document: dict[str, Any]) -> None:
    (config,) = _configs(document)
    arguments = config.get_engine_config().engine_kwargs
    known = {name: arguments[name] for name in arguments if name in AsyncEngineArgs.__dataclass_fields__}
    sys.stdout.write(json.dumps({"unknown": sorted(set(arguments) - set(known)), "known": sorted(known)}) + "\n")


def _serve(document: dict[str, Any], body: str, port: int) -> None:
    ray.init(num_cpus=4, include_dashboard=False, logging_level="ERROR", object_store_memory=200 * 2**20)
    try:
        (application,) = document["applications"]
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(build_openai_app(application["args"]), route_prefix=application["route_prefix"])
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/chat/completions", body.encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as reply:  # noqa: S310 - our own child
            sys.stdout.write(f"ANSWER {reply.read().decode()}\n")
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("act", choices=("check", "serve"))
    parser.add_argument("file")
    parser.add_argument("body", nargs="?", default="")
    parser.add_argument("port", nargs="?", type=int, default=0)
    given = parser.parse_args()
    read = json.loads(Path(given.file).read_text())
    if given.act == "check":
        _check(read)
    else:
        _serve(read, given.body, given.port)
