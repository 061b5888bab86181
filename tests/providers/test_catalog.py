"""The catalog resolves secrets and prices once, exactly, and names what is missing."""

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cost.price_book.book import DatedPrice, price_book
from cost.prices import nanousd, price_from_usd
from cost.times import start_of
from providers.catalog import Catalog, SecretMissing, build_catalog, configured_prices, repriced, secret_reader
from providers.config import ProvidersSection
from tests.providers.test_config import DIRECT, model, section

LITELLM = {
    "kind": "litellm",
    "upstream_model": "bedrock/m",
    "options": {"aws_secret_access_key": "env:AWS", "aws_region_name": "eu"},
}


def catalog(providers: ProvidersSection, **environment: str) -> Catalog:
    return build_catalog(providers, secret_reader(environment))


def test_targets_and_deployments() -> None:
    """Ids, secrets, names and addresses are ready to be called."""
    made = catalog(section(model(deployments=[DIRECT | {"base_url": "https://h/v1/", "name": "eu"}])), KEY="s3cret")
    (deployment,) = made.targets["m"].deployments
    assert (deployment.deployment_id, deployment.target_id, deployment.api_key) == ("m/eu", "m", "s3cret")
    assert (deployment.base_url, deployment.upstream_model) == ("https://h/v1", "m")
    assert "s3cret" not in repr(made)
    assert [target.target_id for target in made] == ["m"]
    assert not made.needs_litellm


def test_litellms_options_may_refer_to_secrets() -> None:
    """References in options are resolved; plain values stay."""
    made = catalog(section(model(deployments=[LITELLM])), AWS="s3cret")
    assert made.deployments[0].options == {"aws_secret_access_key": "s3cret", "aws_region_name": "eu"}
    assert made.needs_litellm


def test_claudes_of_anthropics_own_need_no_litellm() -> None:
    """Unless something is set that only litellm's options can say."""
    claude = {"kind": "litellm", "upstream_model": "anthropic/claude-sonnet-4-5"}
    assert not catalog(section(model(deployments=[claude]))).needs_litellm
    assert catalog(section(model(deployments=[claude | {"options": {"api_version": "1"}}]))).needs_litellm


def test_a_target_names_the_row_of_its_ability() -> None:
    """Only those that name one are told to the classifier."""
    made = catalog(section(model(ability="meta-llama/Llama-3-70b"), model(model_id="n")), KEY="k")
    assert made.abilities == {"m": "meta-llama/Llama-3-70b"}
    assert made.targets["n"].ability is None


def test_prices_are_exact_and_default_to_the_input_price() -> None:
    """0.1 is a tenth of a dollar, and no meter is ever free by being left out."""
    price = catalog(section(model(prices={"input": 0.1, "output": "0.3", "version": "v1"})), KEY="k").targets["m"].price
    assert price is not None
    assert price.version == "v1"
    assert price.input_nanousd == nanousd(Decimal("0.1")) == 100_000_000
    assert price.output_nanousd == 300_000_000
    assert price.cached_input_nanousd == price.cache_write_nanousd == price.input_nanousd
    free = catalog(section(model(prices={"input": 1, "output": 1, "cached_input": 0})), KEY="k").targets["m"].price
    assert free is not None
    assert free.cached_input_nanousd == 0


def test_prices_are_those_of_a_moment() -> None:
    """Of several dated prices the one in effect counts, and what was entered comes before it."""
    prices = [{"input": 1, "output": 1}, {"input": 2, "output": 2, "effective_from": "2026-02-01"}]
    providers = section(model(prices=prices))
    february_us = start_of(date(2026, 2, 1))
    secrets = secret_reader({"KEY": "k"})

    def version(moment_us: int, *entered: DatedPrice) -> str | None:
        book = price_book([*configured_prices(providers).entries(), *entered])
        made = build_catalog(providers, secrets, book, moment_us)
        again = repriced(build_catalog(providers, secrets), book, moment_us)
        assert again == made
        price = made.targets["m"].price
        return None if price is None else price.version

    assert version(february_us - 1) == "1/1/-/-"
    assert version(february_us) == "2026-02-01"
    entered = price_from_usd(version="entered", input_usd=3, output_usd=3)
    override = DatedPrice(target_id="m", price=entered, source="override", effective_us=5)
    assert version(february_us, override) == "entered"
    assert version(4, override) == "1/1/-/-"


def test_prices_may_come_from_litellms_table() -> None:
    """The installed release's table has the figures, and its version says so."""
    price = catalog(section(model(prices={"source": "litellm", "name": "gpt-4o"})), KEY="k").targets["m"].price
    assert price is not None
    assert price.version.startswith("litellm-1.")
    assert price.input_nanousd > 0


def test_an_unknown_price_stays_unknown() -> None:
    """Without prices there is None, never 0."""
    assert catalog(section(model()), KEY="k").targets["m"].price is None


@pytest.mark.parametrize("environment", [{}, {"KEY": ""}, {"KEY": "s3cret\n"}])
def test_a_missing_secret_is_named_with_its_place(environment: dict[str, str]) -> None:
    """The error tells the variable and the key, and never a value."""
    with pytest.raises(SecretMissing) as raised:
        catalog(section(model()), **environment)
    assert str(raised.value).startswith("providers.models[m].deployments[main].api_key: env:KEY ")
    assert "s3cret" not in str(raised.value)


def test_secrets_in_files(tmp_path: Path) -> None:
    """A file's last line end is no part of the secret; a missing file is named."""
    path = tmp_path / "key"
    providers: dict[str, Any] = model(deployments=[DIRECT | {"api_key": f"file:{path}"}])
    with pytest.raises(SecretMissing, match="cannot be read"):
        catalog(section(providers))
    path.write_text("s3cret\n")
    assert catalog(section(providers)).deployments[0].api_key == "s3cret"


def test_media_links_are_allowed_by_name() -> None:
    """Only the deployment that says so may fetch what callers link to."""
    own = {"kind": "vllm", "base_url": "http://h/v1"}
    near = {"kind": "openai", "base_url": "http://10.0.0.7/v1", "name": "c", "allow_media_links": True}
    made = catalog(section(model(deployments=[own, own | {"name": "b", "allow_media_links": True}, near])))
    assert [deployment.allow_media_links for deployment in made.deployments] == [False, True, True]
    assert [deployment.fetches_inside for deployment in made.deployments] == [True, True, True]


def test_a_model_may_hedge_other_tiers_than_all() -> None:
    """What the section says is for models that say nothing; an empty list is an answer, too."""
    models = (model(), model(model_id="n", hedging=["batch"]), model(model_id="o", hedging=[]))
    made = catalog(section(*models, hedging={"tiers": ["interactive"]}), KEY="k")
    assert {name: set(each.hedged_tiers) for name, each in made.targets.items()} == {
        "m": {"interactive"},
        "n": {"batch"},
        "o": set(),
    }


def test_auto_chooses_from_what_chats_or_from_all_where_nothing_does() -> None:
    """Targets that embed are left out, unless there are no others."""
    chats = catalog(section(model(model_id="chats")), KEY="k").targets["chats"]
    embeds = msgspec.structs.replace(chats, target_id="embeds", capabilities=frozenset({"embeddings"}))
    assert Catalog(targets={"embeds": embeds, "chats": chats}).chatting == (chats,)
    assert Catalog(targets={"embeds": embeds}).chatting == (embeds,)
