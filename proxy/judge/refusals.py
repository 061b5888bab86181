"""Recognition of refusals: a short answer that begins as refusals do, in eleven languages.

Words of regret are not enough, the refusing verb must follow: "I'm sorry, but I can't make it to the party"
is an answer to somebody who asked for an excuse. A longer text usually goes on to answer, so only a short one counts.
"""

import re
from typing import Final

MAX_REFUSAL_CHARS: Final = 320

_ENGLISH: Final = (
    r"(?:(?:i'?m|i am) (?:really |very |so |truly )?sorry|sorry|i apologi[sz]e|my apologies|unfortunately)?[,.!]? ?"
    r"(?:but )?(?:as an? (?:ai|artificial intelligence|large language|language)[a-z ]{0,30}, )?(?:but )?"
    r"i(?:'m| am)? ?"
    r"(?:can'?t|cannot|can not|won'?t|will not|(?:not |un)able to|not (?:going|allowed|permitted) to) "
    # "I can't help but wonder" is no refusal.
    r"(?:help(?: you)?(?: (?:with|you|to|create|write|in)\b|[.,!]|$)|assist|comply|fulfill? (?:that|this|your)|"
    r"provide (?:that|this|you|any|assistance|help|information|instructions)|answer (?:that|this|your)|"
    r"do that[.,]|support (?:that|this)|discuss (?:that|this)|respond to (?:that|this)|"
    r"engage (?:in|with) (?:that|this)|(?:create|generate|produce|write) (?:that|this|such) )"
)
_GERMAN: Final = (
    r"(?:(?:es )?tut mir (?:sehr )?leid|entschuldigung|leider)[,.!]? ?(?:aber )?"
    r"(?:(?:dabei|damit|bei dieser (?:anfrage|frage)|das|dies|diese anfrage) )?(?:kann|darf|werde) ich "
    r"(?:ihnen |dir |dabei |damit |hierbei |bei |dieser |diese |anfrage |das |dies |leider ){0,5}nicht "
    r"(?:weiter)?(?:helfen|unterstützen|behilflich|erfüllen|beantworten|nachkommen)"
    r"|(?:es )?tut mir (?:sehr )?leid[,.!]? ?(?:aber )?ich (?:kann|darf) "
    r"(?:ihnen |dir |dabei |damit |hierbei |bei |dieser |diese |anfrage |das |dies |leider ){0,5}nicht "
    r"(?:weiter)?(?:helfen|unterstützen|behilflich|erfüllen|beantworten|nachkommen)"
)
_FRENCH: Final = (
    r"(?:je (?:suis )?(?:vraiment )?désolée?|désolée?)[,.!]? ?(?:mais )?je ne (?:peux|puis) pas "
    r"(?:vous |t')?(?:aider|répondre|fournir|accéder|satisfaire|faire cela)"
)
_SPANISH: Final = (
    r"(?:lo siento(?: mucho)?|disculpa|perdón)[,.!]? ?(?:pero )?no puedo "
    r"(?:ayudar|asistir|cumplir|proporcionar|responder|hacer eso)"
)
_PORTUGUESE: Final = (
    r"(?:sinto muito|desculpe|lamento|me desculpe)[,.!]? ?(?:mas )?(?:eu )?não posso "
    r"(?:te |lhe )?(?:ajud|auxiliar|atender|cumprir|fornecer|responder|fazer isso)"
)
_ITALIAN: Final = (
    r"(?:mi dispiace|spiacente)[,.!]? ?(?:ma )?non posso (?:aiutar|assister|soddisfare|fornir|rispondere|farlo)"
)
_DUTCH: Final = (
    r"(?:het spijt me|sorry)[,.!]? ?(?:maar )?"
    r"(?:ik kan (?:je |u |hier |daar |daarbij |hierbij ){0,3}niet|(?:daar|hier)(?:bij|mee)? kan ik (?:je |u )?niet) "
    r"(?:mee |bij )?(?:helpen|assisteren|voldoen)"
)
_CHINESE: Final = r"(?:很?抱歉|对不起)[^。]{0,2}但?我(?:无法|不能)(?:提供|协助|帮助|满足|回答|完成)"
_JAPANESE: Final = (
    r"(?:申し訳(?:ありません|ございません)|すみません)(?:が)?[^。]{0,30}?(?:お手伝い|お答え|対応|提供)"
    r"[^。]{0,8}?(?:できません|いたしかねます)"
)
_KOREAN: Final = r"죄송(?:합니다|하지만)[^.]{0,40}?(?:도와|도움|답변|제공)[^.]{0,12}?(?:없습니다|못합니다)"
_RUSSIAN: Final = (
    r"(?:извините|простите|к сожалению)[,.]? ?(?:но )?(?:я )?не могу (?:вам )?"
    r"(?:помочь|ответить|предоставить|выполнить)"
)
_LANGUAGES: Final = (
    *(_ENGLISH, _GERMAN, _FRENCH, _SPANISH, _PORTUGUESE, _ITALIAN, _DUTCH),
    *(_CHINESE, _JAPANESE, _KOREAN, _RUSSIAN),
)
# Quotation marks and emphasis may stand before the first word.
_REFUSAL: Final = re.compile(
    "[\\s\"'\u201c\u201e\u00ab*_#>-]{0,20}(?:" + "|".join(f"(?:{each})" for each in _LANGUAGES) + ")"
)
_APOSTROPHES: Final = str.maketrans({"\u2019": "'", "\u2018": "'", "\u02bc": "'"})


def reads_as_refusal(text: str) -> bool:
    """Return True when the whole answer is a refusal: at most MAX_REFUSAL_CHARS long and opening like one."""
    if not text or len(text) > MAX_REFUSAL_CHARS:
        return False
    if not text.isascii():
        # Each letter of a text that is looked up in vain costs an exception.
        text = text.translate(_APOSTROPHES)
    return _REFUSAL.match(" ".join(text.lower().split())) is not None
