"""Compare our count of parameters with the models themselves, and write down what each `model_type` leaves unsaid.

    PYTHONPATH=. PYTHON -m benchmarks.architectures

PYTHON is one with transformers and torch, such as `.venv-vllm/bin/python`. Models are made without memory for their weights
(torch's meta device), at each type's defaults and at the shapes in `benchmarks/shapes.json`. It writes
`planner/plans/data/architectures.json`, which is installed, and `tests/planner/plans/counted.json`, which tests read.
"""

import contextlib
import json
import signal
import sys
from collections.abc import Container, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from planner.plans.architectures import WRITES_NO_TEXT
from planner.plans.config_json import model_from_config, parameters_of
from planner.plans.plan_errors import PlanRefused

_ROOT: Final = Path(__file__).resolve().parent.parent
_CLOSE: Final = 0.1
_MOST_SECONDS: Final = 60
_ENCODERS: Final = ("vision", "visual", "audio", "vit", "image", "multi_modal_projector", "connector")


def main() -> None:
    """Write both files."""
    transformers.logging.set_verbosity_error()
    signal.signal(signal.SIGALRM, _too_long)
    shapes = json.loads((_ROOT / "benchmarks/shapes.json").read_text())
    causal = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    names = sorted((causal | set(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)) - WRITES_NO_TEXT)
    keys = set[str]().union(*(_keys_read(whole) for name in names if (whole := _config(name, {})) is not None))
    types: dict[str, dict[str, Any]] = {}
    cases: list[dict[str, Any]] = []
    for at, name in enumerate(names):
        print(f"\r{at + 1}/{len(names)} {name:40s}", end="", file=sys.stderr)
        whole = _config(name, {})
        if whole is None:
            continue
        text = whole.get("text_config") or whole
        kind = text.get("model_type", name)
        if text is not whole:
            types.setdefault(name, {"defaults": _chosen(whole, {"tie_word_embeddings"})})
            if kind in causal:
                # The language model alone is counted under its own name, and exactly.
                continue
        known = types.setdefault(kind, {})
        known["defaults"] = _chosen(text, keys)
        for change in ({}, *shapes.get(kind, [])):
            real, ours = _parameters(name, change), _ours(_config(name, change))
            if real is not None and ours is not None:
                near = abs(ours / real - 1) <= _CLOSE
                known["counted"] = known.get("counted", True) and near
                if near:
                    cases.append({"model_type": kind, "config": change, "parameters": real})
            if real is None or ours is None or not near:
                print(f"\r{kind} {json.dumps(change)[:80]}: {real} of the model, {ours} of ours", file=sys.stderr)
    told = {
        "source": f"transformers {transformers.__version__}: each type's defaults, and its model made without weights",
        "as_of": f"{datetime.now(UTC):%Y-%m}",
        "types": dict(sorted(types.items())),
    }
    _write(_ROOT / "planner/plans/data/architectures.json", told)
    _write(_ROOT / "tests/planner/plans/counted.json", cases)
    how = [each.get("counted") for each in types.values()]
    print(f"\n{len(types)} types: {how.count(True)} counted, {how.count(False)} not, {how.count(None)} not compared")


def _too_long(*_: object) -> None:
    raise TimeoutError


def _config(name: str, change: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a file of that type would hold, with all that it leaves out."""
    try:
        made = CONFIG_MAPPING[name](**change) if not _has_text(name) else CONFIG_MAPPING[name](text_config=dict(change))
        told: dict[str, Any] = json.loads(made.to_json_string(use_diff=False))
    except Exception:  # noqa: BLE001 - Some types have no defaults of their own, and say so in as many ways.
        return None
    text = told.get("text_config") or told
    if isinstance(own := text.pop("per_layer_config", None), dict) and own:
        # Gemma's: where the text is seen whole, heads are wider.
        first = next(iter(own.values()))
        text["global_head_dim"] = first.get("head_dim", text.get("head_dim"))
        if "num_key_value_heads" in first:
            text["num_global_key_value_heads"] = first["num_key_value_heads"]
    return told


def _has_text(name: str) -> bool:
    return "text_config" in (getattr(CONFIG_MAPPING[name], "sub_configs", None) or {})


def _parameters(name: str, change: Mapping[str, Any]) -> int | None:
    """Return how many parameters the model has, without its encoders of images and sound."""
    kind = AutoModelForCausalLM if name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES else AutoModelForImageTextToText
    signal.alarm(_MOST_SECONDS)
    try:
        made = CONFIG_MAPPING[name](**change) if not _has_text(name) else CONFIG_MAPPING[name](text_config=dict(change))
        with torch.device("meta"):
            model = kind.from_config(made)
    except Exception:  # noqa: BLE001 - so have models
        return None
    finally:
        signal.alarm(0)
    return sum(each.numel() for path, each in model.named_parameters() if not any(part in path for part in _ENCODERS))


def _ours(config: Mapping[str, Any] | None) -> int | None:
    try:
        return None if config is None else parameters_of(config)
    except PlanRefused:
        return None


class _Seen(dict[str, Any]):
    """An object that remembers what was asked of it."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.keys_read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.keys_read.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.keys_read.add(str(key))
        return super().__contains__(key)

    def get(self, key: str, otherwise: Any = None) -> Any:
        self.keys_read.add(key)
        return super().get(key, otherwise)


def _keys_read(config: Mapping[str, Any]) -> set[str]:
    text = config.get("text_config")
    seen = _Seen(text if isinstance(text, dict) else config)
    read = {**config, "text_config": seen} if isinstance(text, dict) else seen
    if (stated := _ours(read)) is not None:
        with contextlib.suppress(PlanRefused):
            model_from_config("it", read, source="it", stated_parameters=stated)
    return seen.keys_read


_MOST_KINDS: Final = 8
_NEVER: Final = {"model_type", "_name_or_path", "num_parameters", "vision_config", "audio_config", "text_config"}


def _chosen(config: Mapping[str, Any], keys: Container[str]) -> dict[str, Any]:
    """Return a type's defaults for these keys; of a list that says something of each layer, how it repeats itself."""
    found = {}
    for key, value in sorted(config.items()):
        if key in _NEVER or key not in keys or value in (None, []):
            continue
        if isinstance(value, list):
            steps = range(1, len(value) // 2 + 1)
            step = next(
                (step for step in steps if all(each == value[at % step] for at, each in enumerate(value))), None
            )
            if step is None and len(value) > _MOST_KINDS:
                continue
            value = value[:step]  # noqa: PLW2901
        found[key] = value
    return found


def _write(path: Path, told: object) -> None:
    path.write_text(
        json.dumps(told, indent=None, separators=(",", ":")).replace('},"', '},\n"').replace("},{", "},\n{") + "\n"
    )


if __name__ == "__main__":
    main()
