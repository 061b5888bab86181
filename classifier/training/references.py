"""Reference prompts whose predictions are stored in the manifest. All were written for this purpose."""

from typing import Final

from classifier.prediction import Prompt

REFERENCE_PROMPTS: Final = (
    Prompt(text=""),
    Prompt(text="hi"),
    Prompt(text="Which river flows through Vienna?"),
    Prompt(text="Write a limerick about a lazy lorry driver in 40 words."),
    Prompt(text="A lorry weighs 7.5 t empty and 18 t loaded. How many 350 kg crates does it carry?"),
    Prompt(text="Which gas do plants take in?\nA. Oxygen\nB. Carbon dioxide\nC. Helium\nD. Argon\nAnswer:"),
    Prompt(text="Prove that the product of any three consecutive integers is divisible by 6, then generalise it."),
    Prompt(text="def f(xs):\n    return sorted(set(xs))[::-1]\nWhat does f([3, 1, 3]) return?"),
    Prompt(text="Book the weighbridge for 14:00 tomorrow.", tools=3, system="You book slots."),
    Prompt(text="And in Rust?", history="Write a lock-free queue in C++ and justify every memory ordering.", turns=3),
    Prompt(text="Wie viele Lastwagen passen auf die Brücke? 漢字 🙂", images=1, json_mode=True),
)
