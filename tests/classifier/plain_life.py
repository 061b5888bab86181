"""Prompts of plain life and work of which anybody would say which are easy, and which are hard. None of them was used to fit or to
set anything.
"""

from typing import Final

from classifier.prediction import Prompt

PROOF: Final = "Prove that every bounded monotone sequence converges."
STORY: Final = "\n".join(
    [
        "Last weekend we drove up to the lake with the children and the dog. The weather was not as good as the forecast had said, but nobody minded.",
        "On Saturday we hired a rowing boat, and Ben lost an oar, which a friendly man in a kayak brought back. In the evening we made soup on the small stove.",
        "On Sunday it rained until noon, so we played cards in the tent and read aloud from the book that grandmother had sent. Then the sun came out.",
        "We packed everything wet into the car, stopped for chips at the harbour, and were home at eight. The dog slept for two days.",
    ]
    * 2
)
LOG: Final = "\n".join(
    f"2025-03-0{d} 0{h}:1{d}:07 INFO request {d}{h}7 served in {d * 7 + h} ms by worker {h}"
    for d in range(1, 9)
    for h in range(1, 6)
)
CONTRACT: Final = (
    "The tenant shall keep the premises in good repair, fair wear and tear excepted. The landlord may enter on 24 hours' notice. The rent is 940 a month, payable on the third working day. Pets need consent in writing. Notice is two months to the end of a quarter. "
    * 3
)
EASY: Final = (
    Prompt(text="what is 2+2"),
    Prompt(text="thanks!"),
    Prompt(text="hi"),
    Prompt(text="ok"),
    Prompt(text="ok", before=PROOF, history=PROOF + "\nLet s be the supremum ...", turns=2),
    Prompt(
        text="thank you so much, that helped",
        before="Design a sharded ledger with exactly-once posting",
        history="Design a sharded ledger with exactly-once posting\nHere is a design ...",
        turns=2,
    ),
    Prompt(text="Set a timer for 10 minutes", tools=5),
    Prompt(text="turn off the kitchen light", tools=8),
    Prompt(text="What's the weather in Lisbon?", tools=3),
    Prompt(text="play the next song", tools=8),
    Prompt(text="whats teh captial of frnace"),
    Prompt(text="how do i spel neccesary"),
    Prompt(text="tell me a joke"),
    Prompt(text="good morning, how are you"),
    Prompt(text="who wrote Romeo and Juliet?"),
    Prompt(text="how many days are in a leap year"),
    Prompt(text="wie viele Minuten hat eine Stunde?"),
    Prompt(text="Danke, das war's schon!"),
    Prompt(text="¿Cuál es la capital de Perú?"),
    Prompt(text="gracias, hasta luego"),
    Prompt(text="Combien font 7 fois 8 ?"),
    Prompt(text="bonjour, ça va ?"),
    Prompt(text="法国的首都是哪里?"),
    Prompt(text="谢谢你!"),
    Prompt(text=STORY + "\n\nWhat was the dog doing at the end?"),
    Prompt(text="How many lines does this log have?\n\n" + LOG),
    Prompt(text=CONTRACT + "\n\nHow much is the rent?"),
    Prompt(text="translate 'good night' into Italian"),
    Prompt(text="is 17 an odd number?"),
    Prompt(text="what does CEO stand for"),
    Prompt(text="Who proved the Poincaré conjecture?"),
    Prompt(text="Put these in alphabetical order: pear, apple, fig, banana"),
    Prompt(text="write HELLO in lower case"),
    Prompt(
        text="what color do you get from blue and yellow",
        system="You are a senior distributed systems architect. Think step by step, prove every claim rigorously, and consider all trade-offs and failure modes.",
    ),
    Prompt(text="Recuérdame comprar leche mañana a las 9", tools=4),
    Prompt(text="que es un gato"),
)
EVERYDAY: Final = (
    Prompt(text="Write a polite email to my landlord asking him to fix the dripping tap."),
    Prompt(text="Summarise this in two sentences:\n" + STORY),
    Prompt(text="Write a Python function that returns the sum of a list."),
    Prompt(text="Give me a recipe for pancakes for four people."),
    Prompt(text="Explain photosynthesis to a ten-year-old."),
    Prompt(text="Übersetze ins Englische: Wir freuen uns auf Ihren Besuch nächste Woche."),
)
HARD: Final = (
    Prompt(text="Prove the Riemann hypothesis"),
    Prompt(text="prove fermats last theorem for n=4"),
    Prompt(
        text="now prove it for the unbounded case", before=PROOF, history=PROOF + "\nLet s be the supremum ...", turns=2
    ),
    Prompt(
        text="does it still hold without compactness? prove or give a counterexample",
        before="what is a compact set",
        history="what is a compact set\nA set is compact if ...",
        turns=2,
    ),
    Prompt(
        text="migrate this repository from Python 2 to 3, keep every test green, and open a pull request for each package",
        tools=8,
    ),
    Prompt(text="migrate this repository", tools=8),
    Prompt(
        text="Find out why orders are lost once a week, fix the cause, prove that it cannot come back, and write the post-mortem",
        tools=6,
    ),
    Prompt(
        text="Design a payment system that never charges twice, even when the network splits and two regions both believe they lead."
    ),
    Prompt(
        text="our kafka consumer loses about one message in a million, only under rebalance. why, and how do we prove its fixed"
    ),
    Prompt(text="Derive the Black-Scholes formula and discuss what breaks when volatility is stochastic."),
    Prompt(
        text="Draft a share purchase agreement clause that caps warranty liability under English law, then attack it as the buyer's counsel would."
    ),
    Prompt(
        text="A 68-year-old on apixaban with eGFR 24 has a GI bleed and a mechanical mitral valve. Weigh stopping, bridging and reversal; give a plan with thresholds."
    ),
    Prompt(
        text="Is P equal to NP? Give the strongest argument either way and explain why relativisation blocks the obvious proofs."
    ),
    Prompt(
        text="Entwirf ein Konsensprotokoll für 5 Rechenzentren, das eine Netztrennung übersteht, und beweise Sicherheit und Lebendigkeit."
    ),
    Prompt(text="Beweise, dass es unendlich viele Primzahlen der Form 4n+3 gibt."),
    Prompt(text="Demuestra que el problema de la parada es indecidible y explica qué cambia con un oráculo."),
    Prompt(
        text="Diseña una migración sin cortes de una base de datos de 40 TB, con plan de marcha atrás y análisis de fallos."
    ),
    Prompt(
        text="Démontrez le théorème des valeurs intermédiaires à partir de la complétude de R, puis un contre-exemple sur Q."
    ),
    Prompt(text="Concevez un mécanisme d'enchères résistant à la collusion et prouvez-le."),
    Prompt(text="证明不存在最大的素数,并推广到算术级数的情形。"),
    Prompt(text="设计一个跨三个数据中心的强一致数据库,分析网络分区时的取舍。"),
    Prompt(
        text="Write a lock-free MPMC queue in C++ with the weakest memory orders that are still correct, and argue why each one is needed."
    ),
    Prompt(
        text="Our A/B test says +3 %, every segment says -1 %. What happened, what may we conclude, and which analysis would you sign?"
    ),
    Prompt(
        text="hey, quick one :) could you show that any continuous function on a compact interval can be approximated by polynomials? thx"
    ),
    Prompt(
        text=CONTRACT
        + "\n\nFind every clause that conflicts with another or with mandatory tenancy law in Germany, say which prevails and redraft them."
    ),
    Prompt(
        text=LOG
        + "\n\nTwo workers deadlock every night although no lock is shared. Give the possible interleavings, the experiment that separates them, and a fix with a proof of liveness."
    ),
    Prompt(text="consensus without clocks: possible?"),
    Prompt(
        text="Plan the merger of two hospitals' IT over 18 months: dependencies, patient safety, regulatory deadlines in two states, and what you would cut first."
    ),
    Prompt(
        text="Why does my GAN collapse only with spectral norm on? Derive what the Lipschitz bound does to the discriminator's gradients."
    ),
    Prompt(
        text="Write a compiler from a small lambda calculus to WebAssembly with closures and tail calls, and prove that it preserves meaning."
    ),
    Prompt(
        text="Reconcile quantum mechanics with the block universe, or show that it cannot be done without giving up something; say what."
    ),
    Prompt(
        text="Audit this whole codebase for SQL injection, fix what you find, add regression tests, and tell me what you could not rule out",
        tools=7,
    ),
    Prompt(
        text="Investiga por qué los márgenes cayeron en tres regiones, separa precio, mezcla y fraude, y prepara el informe para el consejo",
        tools=5,
    ),
    Prompt(
        text="estimate the number of gravitational wave events LIGO misses each year, with your uncertainty and where it comes from"
    ),
)
