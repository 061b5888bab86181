"""The mean request, routed between commercial models alone."""

from pathlib import Path

import pytest

from gateway.configuration.environment import read_environment
from gateway.configuration.settings import load
from gateway.wiring.policy import build_policy
from planner.savings.routed import Routed, routed
from providers.catalog import build_catalog
from tests.gateway.commands.test_savings_simulate import CONFIG


def found(folder: Path, *, input_tokens: int, cached_tokens: int = 0) -> Routed | None:
    path = folder / "c.yaml"
    path.write_text(CONFIG % (0, "1"))
    settings = load(path, read_environment(), secrets_from=None)
    catalog = build_catalog(settings.providers, lambda _: "unused", pools=settings.selfhosted.pool_of_target())
    policy = build_policy(settings.policy, settings.cost)
    return routed(catalog, policy, input_tokens=input_tokens, cached_tokens=cached_tokens, output_tokens=300)


def test_the_mean_is_each_models_part_at_its_price(tmp_path: Path) -> None:
    """The middle model takes what it is capable of, 70 %, the large one the rest; the pool's own model takes nothing."""
    got = found(tmp_path, input_tokens=1_000)
    assert got is not None
    assert got.shares == {"middle": pytest.approx(0.7, abs=0.01), "large": pytest.approx(0.3, abs=0.01)}
    by_hand = 0.7 * (1_000 * 1 + 300 * 5) / 1e6 + 0.3 * (1_000 * 5 + 300 * 20) / 1e6
    assert float(got.usd_per_request) == pytest.approx(by_hand, rel=0.01)


def test_what_fits_no_commercial_model_has_no_bill(tmp_path: Path) -> None:
    """A prompt of a million tokens."""
    assert found(tmp_path, input_tokens=1_000_000) is None
