"""The cost of one score, from text to outlooks, and of its parts: `python -m benchmarks.classifier_cost`.

Writes build/classifier.json. Each figure is the fastest of many rounds of a few calls, by the thread's processor time: what
else a machine does meanwhile makes a round slower and never faster. Parts are measured by themselves, so they find in the
caches what they left there, and add up to less than the whole.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from classifier.features import COMPILED
from classifier.onnx_classifier import open_classifier
from classifier.prediction import Prompt
from classifier.tokens import estimate_tokens

_TEXT: Final = Path("docs/policy.md")
_TOKENS: Final = 800
_TARGETS: Final = ("llama-3-70b-instruct", "gpt-4o-2024-05-13", "gpt-4o-mini-2024-07-18")
_ROUNDS: Final = 3_000
_CALLS: Final = 4
_AIM_US: Final = 100
_OUT: Final = Path("build/classifier.json")


def fastest_us(call: Callable[[], object], *, rounds: int = _ROUNDS, calls: int = _CALLS) -> float:
    """Return the microseconds of processor time for one call, in the fastest round."""
    least = min(_round_ns(call, calls) for _ in range(rounds))
    return round(least / calls / 1_000, 1)


def _round_ns(call: Callable[[], object], calls: int) -> int:
    began = time.thread_time_ns()
    for _ in range(calls):
        call()
    return time.thread_time_ns() - began


def prompt_of(text: str, tokens: int) -> Prompt:
    """Return the beginning of the text that has this many tokens, by the estimate."""
    least, most = 0, len(text)
    while most - least > 1:
        middle = (least + most) // 2
        if estimate_tokens(text[:middle]) <= tokens:
            least = middle
        else:
            most = middle
    return Prompt(text=text[:least])


def parts(prompt: Prompt, *, rounds: int = _ROUNDS) -> dict[str, float]:
    """Return the microseconds by part of a score of this prompt."""
    classifier = open_classifier(None, {name: name for name in _TARGETS})
    inputs = classifier.look_up(prompt)

    def measured(call: Callable[[], object]) -> float:
        return fastest_us(call, rounds=rounds)

    return {
        "text to outlooks": measured(lambda: classifier.classify(prompt)),
        "features and what they look up": measured(lambda: classifier.look_up(prompt)),
        "graph, with what goes in and comes out": measured(lambda: classifier.placed(inputs)),
        "estimate of tokens, which comes in addition": measured(lambda: estimate_tokens(prompt.text)),
        "one numpy call on 500 numbers, for comparison": measured(lambda: np.add(_SOME, _SOME)),
    }


_SOME: Final = np.zeros(500, np.float32)


def main() -> None:
    prompt = prompt_of(_TEXT.read_text(), _TOKENS)
    found = parts(prompt)
    print(
        f"{len(prompt.text):,} characters, {estimate_tokens(prompt.text)} tokens, {len(_TARGETS)} targets; aim {_AIM_US} µs; "
        f"features {'by numpy' if COMPILED is None else 'compiled'}"
    )
    for name, us in found.items():
        print(f"{us:8.1f} µs  {name}")
    _OUT.parent.mkdir(exist_ok=True)
    _OUT.write_text(json.dumps({"characters": len(prompt.text), "us": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
