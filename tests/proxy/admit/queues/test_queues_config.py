"""The `queues` section."""

from pathlib import Path

import pytest

from gateway.configuration.environment import read_environment
from gateway.configuration.file import ConfigError
from gateway.configuration.gateway_config import GatewayConfig
from gateway.configuration.settings import load, reload
from proxy.admit.queues.queues_config import queue_of_target

_FILE = """
accounts:
  pepper_file: var/pepper
providers:
  models:
    - model_id: llama
      provider: meta
      max_context_tokens: 128000
      prices: {{input: 1, output: 1}}
      deployments:
        - {{kind: vllm, base_url: "http://127.0.0.1:9/v1"}}
queues:
{queues}
"""


def _load(folder: Path, queues: str) -> GatewayConfig:
    path = folder / "gateway.yaml"
    path.write_text(_FILE.format(queues=queues))
    return load(path, read_environment())


def test_a_queue_needs_targets_and_a_capacity(tmp_path: Path) -> None:
    """Everything else has a value that makes sense."""
    config = _load(tmp_path, "  own: {targets: [llama], tokens_in_flight: 50000}")
    queue = config.queues["own"]
    assert queue_of_target(config.queues) == {"llama": "own"}
    assert queue.most_waiting_tokens == 500_000
    assert queue.max_wait_s.of("interactive") < queue.max_wait_s.of("batch")
    assert 0 < queue.light_share < 1
    assert 0 < queue.interactive_share < 1


@pytest.mark.parametrize(
    ("queues", "told"),
    [
        ("  own: {targets: [lama], tokens_in_flight: 1}", "there is no model `lama`; did you mean `llama`?"),
        ("  own: {targets: [], tokens_in_flight: 1}", "must not be empty"),
        ("  own: {targets: [llama]}", "tokens_in_flight"),
        ("  own: {targets: [llama], tokens_in_flight: 0}", "tokens_in_flight: is needed, unless"),
        (
            "  one: {targets: [llama], tokens_in_flight: 1}\n  two: {targets: [llama], tokens_in_flight: 1}",
            "`llama` is in `one` and `two`",
        ),
        ("  own: {targets: [llama, llama], tokens_in_flight: 1}", "`llama` is twice in the queue `own`"),
        (
            "  own: {targets: [llama], tokens_in_flight: 1, light_share: 0.5, interactive_share: 0.5}",
            "leave nothing for the batch work",
        ),
        ("  own: {targets: [llama], tokens_in_flight: 1, light_share: 1.5}", "must be at most 0.9"),
        ("  own: {targets: [llama], tokens_in_flight: 1, agin_s: 5}", "aging_s"),
    ],
)
def test_mistakes_are_told_at_the_start(tmp_path: Path, queues: str, told: str) -> None:
    """With what was probably meant."""
    with pytest.raises(ConfigError) as problems:
        _load(tmp_path, queues)
    assert told in str(problems.value)


def test_a_running_process_takes_queues_over(tmp_path: Path) -> None:
    """A change of them needs no restart, also when there were none."""
    before = _load(tmp_path, "")
    assert before.queues == {}
    _load(tmp_path, "  own: {targets: [llama], tokens_in_flight: 50000}")
    reloaded = reload(before, tmp_path / "gateway.yaml", read_environment())
    assert reloaded.refused is None
    assert reloaded.needs_restart == ()
    assert reloaded.config.queues["own"].tokens_in_flight == 50_000
