"""Ray Serve LLM."""

import pytest

from planner.plans.plan_errors import PlanRefused
from planner.plans.render_ray import engine_arguments, ray_serve
from tests.planner.plans.test_serving import planned


def test_flags_become_arguments() -> None:
    """With their types: numbers, objects, switches, words."""
    found = engine_arguments(("--max-num-seqs", "8", "--enable-lora", "--x-y", "0.9", "--z", '{"a":1}', "--d", "fp8"))
    assert found == {"max_num_seqs": 8, "enable_lora": True, "x_y": 0.9, "z": {"a": 1}, "d": "fp8"}


def test_the_application_has_the_plan() -> None:
    """The model, its division, its limits, and how it scales; nothing of the HTTP server that Ray has its own of."""
    (application,) = ray_serve(planned())["applications"]
    (config,) = application["args"]["llm_configs"]
    arguments = config["engine_kwargs"]
    assert application["import_path"] == "ray.serve.llm:build_openai_app"
    assert config["model_loading_config"]["model_id"] == "llama-3-70b"
    assert (arguments["tensor_parallel_size"], arguments["scheduling_policy"]) == (2, "priority")
    assert not {"host", "port", "served_model_name", "shutdown_timeout"} & set(arguments)
    scaling = config["deployment_config"]["autoscaling_config"]
    assert scaling["min_replicas"] <= scaling["initial_replicas"] <= scaling["max_replicas"]
    assert scaling["target_ongoing_requests"] < config["deployment_config"]["max_ongoing_requests"]
    assert config["accelerator_type"] == "H100"


@pytest.mark.parametrize("command", [("sglang", "serve"), ("vllm", "serve", "m", "oops")])
def test_what_ray_does_not_start_is_refused(command: tuple[str, ...]) -> None:
    """Another engine, or words that are no flags."""
    with pytest.raises(PlanRefused):
        ray_serve(planned(command=command))


@pytest.mark.parametrize(("running", "target"), [(6.2, 7), (0.1, 1), (1e6, None)])
def test_ray_scales_by_what_the_plan_runs(running: float, target: int | None) -> None:
    """Not by what the engine would take: at that, targets are missed long since."""
    (application,) = ray_serve(planned(running=running))["applications"]
    found = application["args"]["llm_configs"][0]["deployment_config"]
    wanted = found["max_ongoing_requests"] if target is None else target
    assert found["autoscaling_config"]["target_ongoing_requests"] == wanted
