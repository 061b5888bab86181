"""What may be rendered at all."""

import json
from functools import cache
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.plans.plan_errors import PlanRefused
from planner.plans.planning import Plan, plan
from planner.plans.serving import Serving, as_yaml, checked, from_config, from_launch, label_of
from selfhosted.config import PoolConfig
from tests.examples import examples
from tests.planner.plans.questions import question


@cache
def _plan() -> Plan:
    return plan(question(kv_events_port=5557))


def planned(**changes: Any) -> Serving:
    """A plan's serving, in the pool `h100`."""
    found = _plan()
    serving = from_launch(found.launch, "h100", replicas=found.replicas)
    return msgspec.structs.replace(serving, gpu_title=found.gpu.title, **changes)


@pytest.mark.parametrize(
    "change",
    [
        {"pool": 'x"} or vector(1000) #'},
        {"pool": ""},
        {"name": "Upper"},
        {"name": "a" * 64},
        {"namespace": "kube system"},
        {"weights_claim": "../etc"},
        {"token_secret": "a\nb"},
        {"image": "evil image:latest"},
        {"image": "-x"},
        {"prometheus": "http://user:secret@host"},
        {"prometheus": "file:///etc/passwd"},
        {"environment": {"A=B": "1"}},
        {"min_replicas": 5, "max_replicas": 4},
        {"gpus": 0},
        {"command": ()},
    ],
)
def test_a_name_that_is_none_is_refused(change: dict[str, Any]) -> None:
    """Nothing of it reaches a manifest or a query."""
    with pytest.raises(PlanRefused):
        checked(planned(**change))


@given(st.text(max_size=80))
def test_any_pools_name_becomes_a_label_or_nothing(name: str) -> None:
    """Of lower-case letters, digits and dashes, and not longer than Kubernetes takes."""
    label = label_of(name)
    assert len(label) <= 63
    assert all(each in "abcdefghijklmnopqrstuvwxyz0123456789-" for each in label)
    assert label == label.strip("-")


@settings(max_examples=examples(30))
@given(
    st.recursive(
        st.text() | st.integers() | st.booleans(), lambda each: st.dictionaries(st.text(), each) | st.lists(each)
    )
)
def test_whatever_is_written_is_read_back(value: Any) -> None:
    """YAML's own syntax in a value stays a value, and no aliases are made."""
    printable = json.loads(json.dumps(value)) if _plain(value) else {}
    assert yaml.safe_load(as_yaml([{"value": printable}])) == {"value": printable}


def _plain(value: Any) -> bool:
    """YAML 1.1 has no surrogates and few control characters; nothing checked contains them."""
    return json.dumps(value, ensure_ascii=False).isprintable()


def test_a_configured_pool_is_taken_as_it_is_launched() -> None:
    """Its command with the address filled in, its scale, its cold start, its namespace."""
    pool = PoolConfig.model_validate(
        {
            "name": "Big.Pool",
            "targets": ["llama-3-70b"],
            "kubernetes": {"service": "vllm", "namespace": "models"},
            "scale": {"min_replicas": 2, "max_replicas": 6, "cold_start_s": 400},
            "launch": {
                "command": [
                    "vllm",
                    "serve",
                    "org/model",
                    "--port",
                    "{port}",
                    "--host",
                    "{host}",
                    "--x",
                    "$(HOME){name}",
                ],
                "environment": {"A": "1"},
                "drain_s": 120,
            },
            "watch": {"kv_events_port": "+1000"},
        }
    )
    found = checked(from_config(pool, gpus=4))
    assert (found.name, found.namespace, found.gpus) == ("vllm", "models", 4)
    assert (found.min_replicas, found.max_replicas, found.replicas) == (2, 6, 2)
    assert found.command[3:5] == ("--port", "8000")
    # Only the pod's own name is put in by Kubernetes; what looks like a variable of somebody's stays text.
    assert found.command[-1] == "$$(HOME)$(POD_NAME)"
    assert (found.cold_start_s, found.drain_s, found.kv_events_port) == (400, 120, 9000)


def test_a_pool_without_a_launch_is_refused_with_the_way_out() -> None:
    """Nobody knows how it is started."""
    with pytest.raises(PlanRefused, match="--plan"):
        from_config(PoolConfig.model_validate({"name": "a", "targets": ["m"]}), gpus=1)


def test_a_plans_serving_knows_its_ports() -> None:
    """The KV events' port is read from the very flag that opens it."""
    assert planned().kv_events_port == 5557
    assert planned().gpus == 2
