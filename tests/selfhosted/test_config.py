"""What a pool's configuration may say."""

import pytest
from pydantic import ValidationError

from selfhosted.config import LaunchConfig, ReplicaConfig


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
