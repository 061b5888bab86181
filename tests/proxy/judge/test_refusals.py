"""Refusals are recognised, and answers are not taken for them."""

import pytest

from proxy.judge.refusals import MAX_REFUSAL_CHARS, reads_as_refusal

REFUSALS = [
    "I'm sorry, but I can't help with that.",
    "I\u2019m sorry, I can\u2019t assist with that request.",
    "I cannot assist with that.",
    "As an AI language model, I cannot provide that information.",
    "Sorry, I'm unable to help you with this request.",
    '"I\'m sorry, but I cannot fulfill this request."',
    "**Unfortunately, I am not able to answer that question.**",
    "I can't create that content.",
    "Es tut mir leid, aber dabei kann ich nicht helfen.",
    "Tut mir leid, ich kann Ihnen dabei nicht weiterhelfen.",
    "Je suis désolé, mais je ne peux pas vous aider avec cela.",
    "Lo siento, pero no puedo ayudar con eso.",
    "Desculpe, mas não posso ajudar com isso.",
    "Mi dispiace, ma non posso aiutarti con questo.",
    "Het spijt me, maar ik kan je daar niet mee helpen.",
    "Sorry, maar daar kan ik je niet bij helpen.",
    "很抱歉\uff0c我无法提供帮助。",
    "申し訳ありませんが、そのご要望にはお答えできません。",
    "죄송합니다만, 그 요청은 도와드릴 수 없습니다.",
    "Извините, но я не могу помочь в этом.",
]
ANSWERS = [
    "",
    "I'm sorry, but I can't make it to the party on Saturday.",
    "I'm sorry for your loss.",
    "I can't help but wonder whether the bridge will hold.",
    "I can't help falling in love with you.",
    "I won't write a comma there, because the clause is restrictive.",
    "Unfortunately, I cannot recommend the hotel.",
    "Sorry is an adjective.",
    "You cannot assist in a match and score at once.",
    "The model said: I can't help with that.",
    "Es tut mir leid, dass der Zug zu spät kam.",
    "Leider kann ich am Freitag nicht kommen.",
    "Je suis désolé pour ce retard.",
    "Lo siento, no puedo ir contigo al cine.",
    "对不起\uff0c我来晚了。",
    "Извините за опоздание.",
]


@pytest.mark.parametrize("text", REFUSALS)
def test_a_short_refusal_is_recognised(text: str) -> None:
    """In each language, with its usual openings."""
    assert reads_as_refusal(text)


@pytest.mark.parametrize("text", ANSWERS)
def test_an_answer_is_not_taken_for_a_refusal(text: str) -> None:
    """Regret alone, or inability alone, is none."""
    assert not reads_as_refusal(text)


def test_a_long_text_goes_on_to_answer() -> None:
    """Only a short one is a refusal and nothing else."""
    assert not reads_as_refusal(REFUSALS[0] + " But here is what I can say." + " word" * (MAX_REFUSAL_CHARS // 5))
