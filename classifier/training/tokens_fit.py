"""Fit the weights of `classifier.tokens` against a real vocabulary, and measure the error.

`python -m classifier.training.tokens_fit --data DIR` prints the weights to paste and the errors. The
vocabulary is cl100k_base as it lies inside the litellm package; nothing is downloaded.
"""

import argparse
import base64
import importlib.util
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy.optimize import nnls

from classifier.tokens import CLASSES, PAIRS, class_pairs, estimate_tokens

_LANGUAGES = {
    "german": (
        "Die Waage am Tor wiegt jeden Lastwagen, bevor er auf die Straße darf. Wer zu schwer beladen ist, muss umladen "
        "oder eine längere Strecke nehmen. Am Ende des Monats prüft die Buchhaltung, ob alle Gebühren bezahlt wurden."
    ),
    "french": (
        "La bascule à l'entrée pèse chaque camion avant qu'il ne prenne la route. Celui qui est trop chargé doit "
        "décharger une partie ou faire un détour. À la fin du mois, la comptabilité vérifie les péages réglés."
    ),
    "spanish": (
        "La báscula de la entrada pesa cada camión antes de que salga a la carretera. El que va demasiado cargado debe "
        "descargar o tomar un camino más largo. ¿Quién comprueba después que todas las tarifas se han pagado?"
    ),
    "other_latin": (
        "A balança da entrada pesa cada camião antes de sair para a estrada. Waga przy bramie waży każdą ciężarówkę, zanim "
        "wyjedzie na drogę. Vågen vid grinden väger varje lastbil innan den kör ut på vägen. Kapıdaki kantar her kamyonu "
        "yola çıkmadan önce tartar. The naïve maître d' at the café served crème brûlée – “à la carte” – to Zoë and "
        "François for €12 … a cliché, but très chic."
    ),
    "russian": (
        "Весы у ворот взвешивают каждый грузовик до того, как он выедет на дорогу. Слишком тяжёлая машина должна "
        "разгрузиться или поехать длинным путём. В конце месяца бухгалтерия проверяет оплату."
    ),
    "greek": "Η ζυγαριά στην πύλη ζυγίζει κάθε φορτηγό πριν βγει στον δρόμο. Όποιος είναι βαρύς αλλάζει διαδρομή.",
    "arabic": "الميزان عند البوابة يزن كل شاحنة قبل أن تخرج إلى الطريق. ومن كان حمله ثقيلا فعليه أن يسلك طريقا أطول.",
    "hindi": "फाटक पर लगा काँटा हर ट्रक को सड़क पर जाने से पहले तौलता है। जो बहुत भारी है उसे लंबा रास्ता लेना पड़ता है।",
    "chinese": "门口的地磅在每辆卡车上路之前都要称重。装得太重的车必须卸货或者绕远路。月底会计核对所有的过路费是否已经付清。",
    "japanese": "門のはかりは、道路に出る前にすべてのトラックの重さを量ります。重すぎる車は荷を下ろすか、遠回りをします。",
    "korean": "문 앞의 저울은 모든 트럭이 도로로 나가기 전에 무게를 잰다. 너무 무거운 차는 짐을 내리거나 먼 길로 돌아간다.",
    "emoji": "Great work 🎉🎉 see you at 🚚 the gate 🙂 then ☕ and 🍰! 👍🏽 Don't be late ⏰ 😅😅 "
    "🙂🙂🙂🙂🙂🙂 🚀🚀🚀🔥🔥 😂 😂 😂 ❤️❤️❤️ 🎂🥳 ok 🙏🙏 ✅ done ✅ 🐱🐶🦊 🇪🇺",
}
# One more sentence of most of them, which nothing is fitted to.
_UNSEEN = (
    "Am Montag kam ein Fahrer mit einer Ladung Äpfel, deren Gewicht nicht zu den Papieren passte. Wir haben neu gewogen.",
    "Le chauffeur est arrivé trop tôt et il a attendu devant la grille. Personne ne savait où trouver la clé du bureau.",
    "El conductor llegó demasiado temprano y esperó delante de la puerta. Nadie sabía dónde estaba la llave de la oficina.",
    "Водитель приехал слишком рано и ждал у ворот с чашкой кофе. Никто не знал, где лежит ключ от конторы.",
    "Ο οδηγός έφτασε πολύ νωρίς και περίμενε μπροστά στην πόρτα με έναν καφέ.",
    "وصل السائق مبكرا جدا وانتظر أمام البوابة ومعه فنجان قهوة. لم يكن أحد يعرف أين مفتاح المكتب.",
    "ड्राइवर बहुत जल्दी पहुँच गया और कॉफी लेकर फाटक के सामने इंतज़ार करता रहा।",
    "司机来得太早了，只好拿着咖啡在门口等。没有人知道办公室的钥匙放在哪里，所以大家都很着急。",
    "運転手は早く着きすぎて、コーヒーを片手に門の前で待っていた。事務所の鍵がどこにあるのか誰も知らなかった。",
    "운전사는 너무 일찍 도착해서 커피를 들고 문 앞에서 기다렸다. 사무실 열쇠가 어디 있는지 아무도 몰랐다.",
)


def _vocabulary() -> Callable[[str], list[int]]:
    spec = importlib.util.find_spec("litellm")
    if spec is None or spec.origin is None:
        message = "the litellm package, which carries the vocabulary, is not installed"
        raise SystemExit(message)
    os.environ["TIKTOKEN_CACHE_DIR"] = str(Path(spec.origin).parent / "litellm_core_utils" / "tokenizers")
    import tiktoken  # noqa: PLC0415 - It reads the variable above when it loads a vocabulary.

    return tiktoken.get_encoding("cl100k_base").encode_ordinary


def _texts(data: Path) -> dict[str, list[str]]:
    prompts = pq.read_table(data / "prompts.parquet", columns=["prompt"]).column("prompt").to_pylist()
    library = [Path(path) for path in sorted(Path(os.__file__).parent.glob("*.py"))[:160]]
    code = [text[at : at + 3000] for path in library for text in [path.read_text()] for at in range(0, 9000, 3000)]
    languages = {
        name: [text, text[: len(text) // 2], text * 4] + [text[at : at + 60] for at in range(0, len(text) - 60, 30)]
        for name, text in _LANGUAGES.items()
    }
    draw = random.Random(1)  # noqa: S311 - Nothing secret.
    blobs = [draw.randbytes(draw.randint(20, 600)) for _ in range(120)]
    noise = [base64.b64encode(blob).decode() if at % 2 else blob.hex() for at, blob in enumerate(blobs)]
    capitals = [prompt.upper() for prompt in prompts[::100]]
    code = [part for part in code if part.strip()]
    return {"noise": noise, "prompts": prompts, "code": code, "capitals": capitals, **languages}


def _pair_counts(text: str) -> NDArray[np.float64]:
    return np.bincount(class_pairs(text), minlength=PAIRS).astype(np.float64)


def _fit(texts: dict[str, list[str]], encode: Callable[[str], list[int]]) -> NDArray[np.float64]:
    rows, wanted = [], []
    for name, group in texts.items():
        # Small groups weigh as much as a tenth of the prompts, so that they are heard; random text much less.
        share = {"prompts": 1.0, "noise": 0.01, "capitals": 0.01}.get(name, 0.1)
        weight = (len(texts["prompts"]) * share / len(group)) ** 0.5
        for text in group:
            count = len(encode(text))
            if count:
                rows.append(_pair_counts(text) * (weight / count))
                wanted.append(weight)
    design = np.stack(rows)
    squares = design.T @ design
    # A trace of ridge: some pairs of classes never stand together. The triangle has the same least squares, in few rows.
    squares[np.diag_indices(PAIRS)] += 1e-4 * np.trace(squares) / PAIRS
    triangle = np.linalg.cholesky(squares)
    weights: NDArray[np.float64] = nnls(triangle.T, np.linalg.solve(triangle, design.T @ np.array(wanted)))[0]
    return weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    texts, encode = _texts(parser.parse_args().data), _vocabulary()
    weights = _fit(texts, encode)
    for row in np.round(1000 * weights).astype(int).reshape(len(CLASSES), -1):
        print(" ".join(f"{weight:4d}" for weight in row))
    for name, group in {**texts, "unseen": _UNSEEN}.items():
        pairs = [(estimate_tokens(text), len(encode(text))) for text in group]
        error = np.array([100 * (said - true) / true for said, true in pairs if true])
        total = 100 * (sum(s for s, _ in pairs) / sum(t for _, t in pairs) - 1)
        print(
            f"{name:10s} n={len(error):6d}  bias {total:+5.1f} %  "
            f"median {np.median(abs(error)):4.1f} %  p90 {np.percentile(abs(error), 90):4.1f} %",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
