"""What a pool's configuration may say."""

from typing import Any

import pytest
from pydantic import ValidationError

from selfhosted.config import LaunchConfig, PoolConfig, ReplicaConfig, SelfhostedSection


@pytest.mark.parametrize("url", ["http://h:99999", "http://h:0", "http://h:many", "http://[::1", "http://:8000"])
def test_an_address_that_is_none_is_refused_at_the_start(url: str) -> None:
    """Rather than failing somewhere in the loops that look after the pool."""
    with pytest.raises(ValidationError):
        ReplicaConfig(name="a", url=url)


@pytest.mark.parametrize("url", ["http://h", "http://h:8000", "https://[::1]:8000", "http://10.0.0.1:65535"])
def test_an_address_is_a_host_with_or_without_a_port(url: str) -> None:
    """By its name or its number."""
    assert ReplicaConfig(name="a", url=url).url == url


@pytest.mark.parametrize(
    ("name", "value"), [("HF_TOKEN", "x"), ("VLLM_API_KEY", "x"), ("aws_secret_access_key", "x"), ("A", "env:A")]
)
def test_an_engines_environment_has_no_secrets(name: str, value: str) -> None:
    """It is shown by `config check --show` and written into manifests; and no reference in it is looked up."""
    with pytest.raises(ValidationError, match="looks like a secret") as refused:
        LaunchConfig(command=("vllm",), environment={name: value})
    assert "input_value" not in str(refused.value)


def test_an_engines_environment_is_given_as_it_stands() -> None:
    """Settings that only sound like secrets pass."""
    given = {"TOKENIZERS_PARALLELISM": "false", "VLLM_LOGGING_LEVEL": "INFO"}
    assert LaunchConfig(command=("vllm",), environment=given).environment == given


def _sharing(first: dict[str, Any] | None = None, **group: Any) -> SelfhostedSection:
    pools = [{"name": "a", "targets": ["m-a"], **(first or {})}, {"name": "b", "targets": ["m-b"]}]
    return SelfhostedSection.model_validate(
        {"pools": pools, "shared_gpus": [{"name": "box", "pools": ["a", "b"], **group}]}
    )


def test_pools_share_gpus_in_turns() -> None:
    """The rules of their turns are the group's, and every pool knows its group."""
    section = _sharing(least_awake_s=5)
    (group,) = section.shared_gpus
    assert (group.level, group.rules.pools, group.rules.least_awake_s) == (1, ("a", "b"), 5)
    assert section.shared_by("b") is group
    assert section.shared_by("c") is None


@pytest.mark.parametrize(
    ("first", "group", "told"),
    [
        ({}, {"pools": ["a"]}, "at least 2"),
        ({}, {"pools": ["a", "a"]}, "a pool is named twice"),
        ({}, {"pools": ["a", "z"]}, "`z` shares the GPUs `box`, and is no pool"),
        ({}, {"name": "a"}, "`a` of shared_gpus is the name of a pool"),
        ({}, {"level": 3}, "Input should be 1 or 2"),
        ({"engine": "sglang"}, {}, "only vLLM sleeps"),
        ({"scale": {}}, {}, "there is room for no more replicas"),
        ({"prefill": {"replicas": "read-*"}}, {}, "awake together"),
        ({"launch": {"command": ["vllm"], "keep_asleep": 1}}, {}, "leave it out"),
    ],
)
def test_gpus_that_cannot_be_shared_are_refused(first: dict[str, Any], group: dict[str, Any], told: str) -> None:
    """With what is wrong, and mostly what to do."""
    with pytest.raises(ValidationError, match=told):
        _sharing(first, **group)


def test_a_pool_stands_on_one_groups_gpus() -> None:
    """An engine has one set of GPUs."""
    pools = [{"name": name, "targets": [f"m-{name}"]} for name in "abc"]
    groups = [{"name": "one", "pools": ["a", "b"]}, {"name": "two", "pools": ["b", "c"]}]
    with pytest.raises(ValidationError, match="`b` shares the GPUs `one` and `two`"):
        SelfhostedSection.model_validate({"pools": pools, "shared_gpus": groups})


def _apart(prefill: dict[str, Any], **fields: Any) -> PoolConfig:
    return PoolConfig.model_validate(
        {"name": "p", "targets": ["m"], "prefill": {"replicas": "read-*", **prefill}, **fields}
    )


def test_a_pool_with_prefill_has_two_parts() -> None:
    """Each has its own number and its own launch, and replicas are told apart by their names."""
    pool = _apart({"scale": {"max_replicas": 3}}, scale={"max_replicas": 8})
    answers, reads = pool.parts
    assert (answers.name, reads.name) == ("p", "p/prefill")
    assert answers.scale is not None
    assert reads.scale is not None
    assert (answers.scale.max_replicas, reads.scale.max_replicas) == (8, 3)
    assert [pool.is_in(part, name) for part in pool.parts for name in ("read-1", "write-1")] == [
        False,
        True,
        True,
        False,
    ]
    (whole,) = PoolConfig(name="p", targets=("m",)).parts
    assert (whole.name, whole.does) == ("p", "all")


@pytest.mark.parametrize(
    ("prefill", "fields", "told"),
    [
        ({}, {"scale": {}}, "both kinds of replicas are scaled, or none"),
        ({"scale": {}}, {}, "both kinds of replicas are scaled, or none"),
        ({}, {"launch": {"command": ["vllm"]}}, "`prefill.launch` says how one that reads is started"),
        ({"replicas": "read-?", "launch": {"command": ["vllm"]}}, {}, "a pattern with one"),
        ({"launch": {"command": ["vllm"], "keep_asleep": 1}}, {}, "leave keep_asleep and warm out"),
        ({"scale": {}}, {"scale": {"objective": "economic"}}, "the objective is `latency`"),
        ({"scale": {}}, {"scale": {}, "name": "p" * 60}, "at most 56 characters"),
    ],
)
def test_parts_that_nobody_could_run_are_refused(prefill: dict[str, Any], fields: dict[str, Any], told: str) -> None:
    """With what is missing."""
    with pytest.raises(ValidationError, match=told):
        _apart(prefill, **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"engine": "llama.cpp"},
        {"adapters": [{"name": "x", "target": "x", "path": "/x"}]},
        {"prefill": {"replicas": "p-*"}},
    ],
)
def test_ranks_go_with_engines_that_take_one_from_a_request(fields: dict[str, Any]) -> None:
    """And not with what is done to a process as a whole, or between replicas."""
    told = {"name": "a", "targets": ["m"], "data_parallel_ranks": 2}
    assert PoolConfig.model_validate({**told, "engine": "sglang"}).data_parallel_ranks == 2
    with pytest.raises(ValidationError, match="data_parallel_ranks"):
        PoolConfig.model_validate({**told, **fields})
    assert PoolConfig.model_validate({**told, **fields, "data_parallel_ranks": 1}).data_parallel_ranks == 1


def test_pools_with_ranks_do_not_take_turns() -> None:
    """Their ranks would have to fall asleep together."""
    with pytest.raises(ValidationError, match="sleep together"):
        _sharing({"data_parallel_ranks": 2})
