"""Changes of a prompt that leave its task as it is: case, typos, politeness, and text beside the point."""

import random
from collections.abc import Callable
from typing import Final

import msgspec

from classifier.prediction import Prompt

Change = Callable[[Prompt, random.Random], Prompt]

_POLITE: Final = (
    ("Hi, could you please help me with this? ", ""),
    ("", " Thank you so much in advance!"),
    ("Good morning! I hope you are well. ", " Thanks a lot, have a nice day."),
    ("please ", " thx"),
    ("Hallo, ich hoffe, es geht Ihnen gut. ", " Vielen Dank im Voraus!"),
    ("Hola, ¿me puedes ayudar? ", " ¡Muchas gracias!"),
    ("Bonjour, j'espère que tout va bien. ", " Merci d'avance !"),
    ("你好，麻烦帮我一下。", " 谢谢！"),
    ("I know you are busy, sorry to bother you. ", ""),
    ("Dear assistant, ", " Kind regards, Ann"),
)
_BESIDE: Final = (
    "Sent from my phone. Please excuse typos.",
    "By the way, it has been raining here all week and the cat refuses to go out.",
    "--\nJane Miller\nOffice 4.12, Building C\nPhone 555-0134\nWe are hiring: ask me about open positions.",
    "This message may contain confidential information. If you are not the intended recipient, please delete it.",
    "P.S. The coffee machine on the second floor works again.",
    "Unrelated: my brother visits on Sunday and we will go to the lake if the weather holds.",
    "I am writing this on the train, so I may lose the connection for a while.",
    "Our office moved last month. The new place has a nice view of the river and a canteen with good soup.",
    "(I asked the same in the other window, ignore that one.)",
    "Lunch is at half past twelve today, there will be pasta with tomatoes and a salad.",
    "PS: Das Wetter ist heute herrlich, wir gehen nachher noch im Park spazieren.",
    "P. D.: Ayer fuimos al mercado y compramos naranjas, pan y un poco de queso.",
    "P.-S. : Le train avait du retard ce matin, mais le café de la gare était bon.",
    "另外，今天天气很好，我们下午去公园散步。",
)
_TYPO_SHARE: Final = 0.06


def cased(prompt: Prompt, draw: random.Random) -> Prompt:
    """Return the text in capitals, in small letters, or with a capital at each word."""
    change = draw.choice((str.upper, str.lower, str.title))
    return msgspec.structs.replace(prompt, text=change(prompt.text))


def mistyped(prompt: Prompt, draw: random.Random) -> Prompt:
    """Return the text with letters of some words swapped or left out."""
    words = prompt.text.split(" ")
    for at, word in enumerate(words):
        if len(word) > 3 and draw.random() < 4 * _TYPO_SHARE:
            place = draw.randrange(len(word) - 2) + 1
            swapped = word[:place] + word[place + 1] + word[place] + word[place + 2 :]
            words[at] = swapped if draw.random() < 0.5 else word[:place] + word[place + 1 :]
    return msgspec.structs.replace(prompt, text=" ".join(words))


def polite(prompt: Prompt, draw: random.Random) -> Prompt:
    """Return the prompt with a greeting before it and thanks after it."""
    before, after = draw.choice(_POLITE)
    return msgspec.structs.replace(prompt, text=f"{before}{prompt.text}{after}")


def appended(prompt: Prompt, draw: random.Random) -> Prompt:
    """Return the prompt with a sentence or two beside the point at its end."""
    return msgspec.structs.replace(prompt, text=f"{prompt.text}\n\n{draw.choice(_BESIDE)}")


CHANGES: Final[dict[str, Change]] = {"case": cased, "typos": mistyped, "politeness": polite, "appended": appended}
"""The changes by name, each a function; the same draw gives the same prompt."""
