"""The heuristic classifier: a structural rule with hand-set weights.

It stands in when no model can be loaded. The weights are
judgement: signs of mathematics, proofs, code and many constraints are hard, greetings and look-ups are easy, and a
longer request is a little harder than a short one.
"""

import math
from collections.abc import Mapping
from typing import Final

from classifier.features import STRUCTURE, Features, extract
from classifier.prediction import Prediction, Prompt
from classifier.tuning import Tuning

_LEVEL: Final = -2.6
_WEIGHTS: Final = {
    "log_words": 0.25,
    "math_share": 6.0,
    "backslash_share": 15.0,
    "dollar_share": 15.0,
    "log_numbers": 0.15,
    "code_fence": 0.8,
    "log_turns": 0.1,
    "log_tools": 0.2,
    "log_images": 0.4,
    "json_mode": 0.2,
    "log_system_chars": 0.03,
}
_CUE_WEIGHTS: Final = {
    "cue_maths": 0.9,
    "cue_code": 0.6,
    "cue_constraint": 0.5,
    "cue_reasoning": 0.7,
    "cue_light": -0.9,
}
_TERMS: Final = tuple((STRUCTURE.index(name), weight) for name, weight in _WEIGHTS.items())
_CUE_TERMS: Final = tuple((STRUCTURE.index(name), weight) for name, weight in _CUE_WEIGHTS.items())
_WORDS_AT: Final = STRUCTURE.index("log_words")
_CUE_HALF_WORDS: Final = 500
"""Length of a text, in words, at which a cue counts half: a long pasted text has every cue word somewhere."""

MIN_OUTPUT_TOKENS: Final = 8
P90_FACTOR: Final = 3.0
"""Factor from the guessed length of an answer to its 90th percentile: judgement, like the rule."""
MAX_OUTPUT_TOKENS: Final = 32_768
"""A model that reasons takes seven times gpt-4o's tokens for a proof: a lower bound would make it look as short as others."""
TOKENS_AT_EASIEST: Final = 30.0
TOKENS_BY_COMPLEXITY: Final = 3.4
"""Growth of the logarithm of a reply's tokens from complexity 0 to 1."""
_TOKENS_PER_UNIT: Final = (1.35, 26.0, 110.0, 14.0, 650.0)
"""Tokens of a word, a sentence, a paragraph, a line and a page, in the order of features.UNITS."""
_FALLBACK_COMPLEXITY: Final = 0.5


def structural_complexity(features: Features) -> float:
    """Return the rule's complexity, in (0, 1): a logistic function of weighted facts and cues."""
    facts = features.structure.tolist()
    cues = sum(facts[at] * weight for at, weight in _CUE_TERMS)
    words = math.expm1(facts[_WORDS_AT])
    score = _LEVEL + sum(facts[at] * weight for at, weight in _TERMS) + cues / (1 + words / _CUE_HALF_WORDS)
    return 1 / (1 + math.exp(-max(-30.0, min(30.0, score))))


def asked_tokens(asked: tuple[int, int]) -> float | None:
    """Return the reply's length in tokens when the prompt asks for one ("in 300 words", "a 5-line answer"), else None. What it
    asks for is as in `Features.asked`.
    """
    number, unit = asked
    return number * _TOKENS_PER_UNIT[unit - 1] if number else None


def bounded_tokens(tokens: float) -> int:
    """Return the length rounded, within MIN_OUTPUT_TOKENS and MAX_OUTPUT_TOKENS."""
    if tokens <= MIN_OUTPUT_TOKENS:
        return MIN_OUTPUT_TOKENS
    return round(tokens) if tokens < MAX_OUTPUT_TOKENS else MAX_OUTPUT_TOKENS


def structural_tokens(complexity: float) -> float:
    """Return a guess of a reply's tokens by complexity alone: 35 for a greeting, 600 for a proof."""
    return TOKENS_AT_EASIEST * math.exp(TOKENS_BY_COMPLEXITY * complexity)


class HeuristicClassifier:
    """A classifier by the structural rule alone. Never raises."""

    def __init__(self, fallback_reason: str | None = None) -> None:
        self.fallback_reason = fallback_reason
        """Reason why the model is not in use; None when the heuristic is the intended classifier."""
        self.fallbacks = 0
        """Prompts that got a complexity of 0.5 because the rule itself failed."""

    def adopt(self, abilities: Mapping[str, str], efforts: Mapping[str, Mapping[str, str]] = {}) -> None:
        """Do nothing: the rule knows no abilities."""

    def tune(self, tuning: Tuning | None) -> None:
        """Do nothing: the rule cannot be tuned."""

    def classify(
        self,
        prompt: Prompt,
        team_id: str = "",  # noqa: ARG002 - the rule knows no teams
        *,
        learns: bool = True,  # noqa: ARG002 - and has nothing to learn from
    ) -> Prediction:
        """Return the prediction by the rule; a complexity of 0.5 where the rule itself fails."""
        try:
            features = extract(prompt)
            complexity = structural_complexity(features)
            tokens = asked_tokens(features.asked) or structural_tokens(complexity)
        except Exception:  # noqa: BLE001 - A request must never fail because it could not be weighed.
            self.fallbacks += 1
            complexity, tokens = _FALLBACK_COMPLEXITY, structural_tokens(_FALLBACK_COMPLEXITY)
        return Prediction(
            complexity=complexity,
            source="heuristic",
            expected_output_tokens=bounded_tokens(tokens),
            output_tokens_p90=bounded_tokens(P90_FACTOR * tokens),
        )
