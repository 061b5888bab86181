"""What a gateway weighs with: a trained model that is broken is told of and replaced, a new target is known at once."""

import hashlib
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from api.web.gateway import Gateway
from classifier.manifest import MODEL_FILE, SAMPLE_FILE, TABLES_FILE
from classifier.prediction import Prompt
from classifier.shipped_rows import MANIFEST_FILE
from tests.running_gateway import CHEAP_PRICES, TRAINED, Running, model, running_gateway
from tests.scenarios.conftest import PACKAGED

SCRIPTED: Any = [{"name": "a", "kind": "scripted", "upstream_model": "ok"}]


def missing(folder: Path) -> None:
    shutil.rmtree(folder)


def cut_model(folder: Path) -> None:
    file = folder / MODEL_FILE
    file.write_bytes(file.read_bytes()[:-1])


def cut_manifest(folder: Path) -> None:
    file = folder / MANIFEST_FILE
    file.write_bytes(file.read_bytes()[:1_000])


def no_graph(folder: Path) -> None:
    """The hash is right, so that only the graph itself can tell."""
    nonsense = b"no graph at all"
    (folder / MODEL_FILE).write_bytes(nonsense)
    file = folder / MANIFEST_FILE
    fields = json.loads(file.read_bytes()) | {"model_sha256": hashlib.sha256(nonsense).hexdigest()}
    file.write_text(json.dumps(fields))


def another_program(folder: Path) -> None:
    file = folder / MANIFEST_FILE
    file.write_text(json.dumps(json.loads(file.read_bytes()) | {"feature_hash": "0" * 64}))


def cut_sample(folder: Path) -> None:
    file = folder / SAMPLE_FILE
    file.write_bytes(file.read_bytes()[:-1])


def cut_tables(folder: Path) -> None:
    file = folder / TABLES_FILE
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.long
@pytest.mark.parametrize("harm", [missing, cut_model, cut_tables, cut_manifest, no_graph, another_program, cut_sample])
async def test_a_broken_model_leaves_the_rule_in_charge(
    harm: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The gateway starts, says why in its log, in /readyz and in a metric, and goes on serving `auto`."""
    artifact = tmp_path / "artifact"
    shutil.copytree(PACKAGED, artifact, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    harm(artifact)
    with caplog.at_level(logging.WARNING, "weighbridge.app"):
        async with (
            running_gateway(tmp_path, [model("m", SCRIPTED)], classifier={"artifact_dir": str(artifact)}) as gateway,
            aiohttp.ClientSession() as session,
        ):
            (told,) = [line for line in caplog.messages if "prompts are classified by the plain rule" in line]
            async with session.get(f"{gateway.url}/readyz") as got:
                assert got.status == 200
                weighing = (await got.json())["classifier"]
            assert weighing["in_use"] == "heuristic"
            assert weighing["fallback_reason"]
            assert weighing["fallback_reason"] in told
            async with session.get(f"{gateway.url}/metrics") as got:
                assert "weighbridge_classifier_trained 0.0" in await got.text()
            headers = await ask(gateway, session)
    assert (headers["x-weighbridge-target"], headers["x-weighbridge-classifier"]) == ("m", "heuristic")


async def test_a_reload_gives_a_new_target_its_outlook(tmp_path: Path) -> None:
    """A target that names an ability is weighed by it from the reload on; a bad file takes nothing away."""
    targets = [model("dear", SCRIPTED, ability="gpt-4o-2024-05-13")]
    async with (
        running_gateway(tmp_path, targets, cost={"reference_target": "dear"}, classifier=TRAINED) as gateway,
        aiohttp.ClientSession() as session,
    ):
        inside: Gateway = gateway.parts
        assert set(inside.classifier.classify(Prompt(text="hello")).outlooks) == {"dear"}
        async with session.get(f"{gateway.url}/metrics") as got:
            assert "weighbridge_classifier_trained 1.0" in await got.text()
        written = yaml.safe_load(gateway.config_path.read_text())
        cheap = model("cheap", SCRIPTED, ability="llama-3-70b-instruct", prices=CHEAP_PRICES, capability=0.0)
        written["providers"]["models"].append(cheap)
        written["policy"] = {"quality_floor": 0.5}
        gateway.config_path.write_text(yaml.safe_dump(written))
        gateway.reload()
        assert set(inside.classifier.classify(Prompt(text="hello")).outlooks) == {"cheap", "dear"}
        # By its declared capability it could serve nothing.
        assert (await ask(gateway, session))["x-weighbridge-target"] == "cheap"
        gateway.config_path.write_text("providers: {models: []}\n")
        gateway.reload()
        assert set(inside.classifier.classify(Prompt(text="hello")).outlooks) == {"cheap", "dear"}
        assert (await ask(gateway, session))["x-weighbridge-target"] == "cheap"


async def test_a_refused_reload_takes_no_outlook_away(tmp_path: Path) -> None:
    """A file that needs a restart changes nothing, also not which targets the classifier knows."""
    targets = [model("dear", SCRIPTED, ability="gpt-4o-2024-05-13")]
    async with running_gateway(tmp_path, targets, cost={"reference_target": "dear"}, classifier=TRAINED) as gateway:
        inside: Gateway = gateway.parts
        written = yaml.safe_load(gateway.config_path.read_text())
        behind = [
            {"name": "a", "kind": "litellm", "upstream_model": "bedrock/made-up", "base_url": "http://127.0.0.1:9"}
        ]
        written["providers"]["models"] = [model("other", behind, ability="gpt-4o-2024-05-13")]
        written["cost"]["reference_target"] = "other"
        gateway.config_path.write_text(yaml.safe_dump(written))
        gateway.reload()
        assert set(inside.rules().catalog.targets) == {"dear"}
        assert set(inside.classifier.classify(Prompt(text="hello")).outlooks) == {"dear"}


async def ask(gateway: Running, session: aiohttp.ClientSession) -> dict[str, str]:
    """The headers of an answer to `auto`."""
    body = {"model": "auto", "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    headers = {"authorization": f"Bearer {gateway.key}"}
    async with session.post(f"{gateway.base_url}/chat/completions", json=body, headers=headers) as got:
        assert got.status == 200, await got.text()
        return dict(got.headers)
