"""What is asked is found wherever it stands, and nothing that only stands around it is taken for it."""
# ruff: noqa: RUF001 - signs of other languages, and letters that look like others

import random

import pytest

from classifier.asking.normalization import with_plain_marks
from classifier.asking.resolution import SEARCHED_BYTES, resolve, to_search
from classifier.features import COMPILED, texts_of
from classifier.prediction import Prompt

ASK = "Which clause limits the liability of the supplier, and does it survive gross negligence?"
CONTEXT = (
    "The municipal library closes its main reading room from 6 to 24 April. Returns are possible at the drop box.\n\n"
    "Garlic takes patience more than skill. Plant single cloves in October, a hand apart, in soil that drains well."
)

# The lines by which each framework's default is known; what stands between them is shortened.
TEMPLATES = {
    "LlamaIndex": "Context information is below.\n---------------------\n{c}\n---------------------\nGiven the context information and not "
    "prior knowledge, answer the query.\nQuery: {q}\nAnswer: ",
    "LlamaIndex, refined": "The original query is as follows: {q}\nWe have provided an existing answer: It is clause 4.\n------------\n{c}\n"
    "------------\nGiven the new context, refine the original answer to better answer the query.\nRefined Answer: ",
    "LangChain": "Use the following pieces of context to answer the question at the end. If you don't know the answer, just say that you don't "
    "know, don't try to make up an answer.\n\n{c}\n\nQuestion: {q}\nHelpful Answer:",
    "LangChain, rag-prompt": "You are an assistant for question-answering tasks. Use three sentences maximum and keep the answer concise.\n"
    "Question: {q} \nContext: {c} \nAnswer:",
    "LangChain, ReAct": "Answer the following questions as best you can. You have access to the following tools:\n\nsearch: looks things up\n\n"
    "Use the following format:\n\nQuestion: the input question you must answer\nThought: you should always think about what to do\n"
    "Final Answer: the final answer to the original input question\n\nBegin!\n\nQuestion: {q}\nThought:",
    "LangChain, conversation": "The following is a friendly conversation between a human and an AI.\n\nCurrent conversation:\nHuman: hi\nAI: Hello!\n"
    "Human: {q}\nAI:",
    "Haystack": "Given these documents, answer the question.\nDocuments:\n\n{c}\n\nQuestion: {q}\nAnswer:",
    "DSPy": "[[ ## context ## ]]\n{c}\n\n[[ ## question ## ]]\n{q}\n\nRespond with the corresponding output fields, starting with the field "
    "`[[ ## reasoning ## ]]`.",
    "Alpaca": "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n### Instruction:\n{q}\n\n"
    "### Response:",
    "CrewAI": "\nCurrent Task: {q}\n\nThis is the expected criteria for your final answer: A list.\nyou MUST return the actual complete content "
    "as the final answer, not a summary.\n\nBegin! This is VERY important to you.\n\nThought:",
    "Open WebUI": "### Task:\nRespond to the user query using the provided context.\n\n### Guidelines:\n- If you don't know the answer, say so.\n\n"
    "<context>\n{c}\n</context>\n\n<user_query>\n{q}\n</user_query>\n",
    "Cline": "<task>\n{q}\n</task>\n\n<environment_details>\n# Current Working Directory Files\nREADME.md\n</environment_details>",
    "Claude Code": "<system-reminder>\nRun the tests before you commit. What is asked stands below.\n</system-reminder>\n{q}",
    "Spring AI": "Context information is below.\n\n---------------------\n{c}\n---------------------\n\nGiven the context information and no prior "
    "knowledge, answer the query.\n\nQuery: {q}\n\nAnswer:\n",
    "few shots": "Q: Who wrote Hamlet?\nA: Shakespeare.\n\nQ: {q}\nA:",
    "a helpdesk": "AGENT REQUEST: {q}\n\nTICKET #48213 | open\n--- Conversation ---\n{c}\n--- End ---",
    "documents in tags": '<documents>\n<document index="1">\n{c}\n</document>\n</documents>\n\n{q}',
    "headings": "# Context\n{c}\n\n# Question\n{q}\n\n# Output format\nPlain text.",
    "German": "Beantworte die Frage anhand des Kontexts.\n\nKontext:\n{c}\n\nFrage: {q}\n\nAntwort:",
    "Chinese": "已知信息：\n{c}\n\n根据上述已知信息，简洁和专业地回答用户的问题。\n问题：{q}\n答案：",
    "one line": "Use the context. Context: It rained. Question: {q} Answer:",
}


def asked(prompt: Prompt) -> str:
    found = resolve(prompt)
    return " ".join((found.ask or found.text).decode().split())


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_caller_s_words_are_found_in_a_template(name: str) -> None:
    """In the default of each framework the ask is the caller's question and nothing else."""
    text = TEMPLATES[name].replace("{q}", ASK).replace("{c}", CONTEXT)
    assert asked(Prompt(text=text)) == ASK


@pytest.mark.parametrize("name", sorted(TEMPLATES.keys() - {"documents in tags"}))
def test_what_stands_around_a_whole_question_is_not_read(name: str) -> None:
    """Rules, cues and documents that the question does not speak of are left out of what is read."""
    text = TEMPLATES[name].replace("{q}", ASK).replace("{c}", CONTEXT)
    read = resolve(Prompt(text=text)).text.decode()
    assert ASK in read
    assert "garlic" not in read.lower()


def test_a_question_with_its_answer_is_an_example() -> None:
    """Who asks for a judgement of an answered question asks for the judgement."""
    text = "Grade the answer and give a reason.\n\nQuestion: Who wrote Hamlet?\nAnswer: Marlowe wrote it in 1601."
    assert asked(Prompt(text=text)).startswith("Grade the answer")


def test_material_that_the_ask_speaks_of_is_read() -> None:
    """Code stays beside "why does this fail", and is no part of the ask."""
    found = resolve(Prompt(text="Why does this loop never end?\n\n```python\nwhile True:\n    pass\n```"))
    assert b"while True" in found.text
    assert b"while True" not in found.ask


def test_courtesies_and_signatures_are_no_part_of_the_ask() -> None:
    """A letter's greeting, thanks and signature fall away, and what it asks stays."""
    letter = f"Good morning,\n\nI hope this finds you well.\n\n{ASK}\n\nThank you so much for your help!\n\nBest regards,\nJane Miller\nHead of Purchasing"
    assert resolve(Prompt(text=letter)).text.decode() == ASK


@pytest.mark.parametrize(
    "text", ["thanks a lot!", "Hi!", "ok", "", "   ", "\n\n\n", "```", "<", "?", "Question:", "<task></task>"]
)
def test_a_text_of_nothing_else_is_read_as_it_is(text: str) -> None:
    """Where nothing would be left nothing is left out."""
    assert resolve(Prompt(text=text)).text.decode() == text


SYSTEM = "Extract every date from the text that the user sends and return a list, with the event that belongs to each."
TICKET = (
    "Hello, I bought the espresso machine on 2 January. The pump died on 19 February. I have been without it for five weeks now and paid twelve "
    "euros for a parcel.\n\nPlease send me my money back. Ilse Maran"
)


def test_a_standing_task_of_the_system_message_is_the_ask() -> None:
    """What is pasted as the user message is what it is about, whatever it asks of somebody else."""
    found = resolve(Prompt(text=TICKET, system=SYSTEM))
    assert found.place == "system"
    assert b"Extract every date" in found.ask
    assert b"espresso" in found.text


CODE = "def run(request):\n    return os.popen(request.args['cmd']).read()"


@pytest.mark.parametrize(
    "text", [TICKET, CODE, "id,amount\n17,88.50\n18,90.10", "The mill was built in 1871 and burned down twice."]
)
@pytest.mark.parametrize("role", ["", "You are a careful expert of the Acme company. "])
@pytest.mark.parametrize(
    "task",
    [
        "Return the language code of the text, nothing else.",
        "Extract the invoice number. Output only the number.",
        "Draft a settlement agreement that resolves the dispute described by the customer, considering liability and jurisdiction.",
        "Review the submitted material for vulnerabilities and prove that each patch closes the hole.",
    ],
)
def test_a_standing_task_is_found_behind_a_role_and_over_any_material(task: str, role: str, text: str) -> None:
    """Code, tables, prose and a ticket that asks for money are what the task is about."""
    found = resolve(Prompt(text=text, system=role + task))
    assert found.place == "system"
    assert found.ask.decode().startswith(task.split(".", maxsplit=1)[0])


def test_a_task_in_a_long_system_message_is_found() -> None:
    """Fields, a schema and examples of many thousand bytes after the task do not hide it."""
    fields = "".join(f'    "field_{at}": "string or null, as it stands in the letter",\n' for at in range(200))
    system = f"Extract the fields below from the letter that the user sends.\n\n```json\n{{\n{fields}}}\n```\nUse null where a field is missing."
    found = resolve(Prompt(text=TICKET, system=system))
    assert found.place == "system"
    assert found.ask.startswith(b"Extract the fields")


@pytest.mark.parametrize(
    "system",
    [
        "You are a helpful assistant.",
        "You are the assistant of a bank. Answer the customer's questions politely. Never give legal advice. Keep answers short.",
        "You are Kite, an engineering agent. Inspect the code before editing. Prefer small diffs. Report the commands that you ran.",
        "You are a language partner for learners of Italian. Correct mistakes gently. Keep to the level of the learner.",
        "You are Fern, a coding agent. " + "Read the file before you edit it. Run the tests. Never push. " * 200,
    ],
)
def test_a_role_with_its_rules_is_no_task(system: str) -> None:
    """The user's question is asked, however long the rules are."""
    found = resolve(Prompt(text=ASK, system=system))
    assert found.place == "message"
    assert found.text.decode() == ASK


PLAN = "I would add the new table, write to both from all eleven services, backfill in batches, and then drop the old columns. Shall I do it?"


@pytest.mark.parametrize(
    "text",
    [
        "yes please go ahead with all of it",
        "do it",
        "Sounds good, proceed.",
        "ja bitte, mach das",
        "sí, adelante",
        "oui, vas-y",
        "好的，请继续",
        "ok",
    ],
)
def test_consent_asks_what_was_proposed(text: str) -> None:
    """In five languages the words that accept a proposal ask for what it says."""
    found = resolve(Prompt(text=text, proposal=PLAN))
    assert found.place == "proposal"
    assert b"backfill in batches" in found.ask


@pytest.mark.parametrize(
    "text",
    [
        *("thanks, that helps", "no, leave it", "what would that cost?", "yes, but only for the smallest service"),
        *("thank you!", "thanks", "no thanks", "great, thanks", "ok thanks", "perfect!", "not now"),
        *("danke", "nein danke", "merci", "non merci", "gracias", "vale, gracias", "谢谢", "不用了，谢谢", "太好了"),
    ],
)
def test_other_words_after_a_proposal_ask_for_themselves(text: str) -> None:
    """Thanks, praise, refusals, questions and terms of one's own accept nothing."""
    assert resolve(Prompt(text=text, proposal=PLAN)).place == "message"


@pytest.mark.parametrize(
    "text", ["perfect, do it", "thanks, please do", "danke, mach das", "merci, allez-y", "gracias, adelante"]
)
def test_thanks_or_praise_before_consent_is_consent(text: str) -> None:
    """The words that accept count, whatever courtesy stands beside them."""
    assert resolve(Prompt(text=text, proposal=PLAN)).place == "proposal"


OFFER = "Two ways:\n1. Rename the file.\n2. Rewrite the scheduler with work stealing.\nWhich one?"


@pytest.mark.parametrize(
    "text", ["no, option 1 please", "yes but only the first step", "nur den ersten Schritt bitte", "第一个"]
)
def test_terms_that_name_a_part_ask_for_that_part(text: str) -> None:
    """Of a list the part that is named is asked, in an assent as in a refusal of the rest."""
    assert resolve(Prompt(text=text, proposal=OFFER)).ask == b"Rename the file."


def test_an_option_that_is_named_is_asked() -> None:
    """Of several proposals the one that is chosen."""
    offer = "Two ways:\n1. Rename the file.\n2. Rewrite the scheduler with work stealing.\nWhich one?"
    assert resolve(Prompt(text="option 2 please", proposal=offer)).ask == b"Rewrite the scheduler with work stealing."


def test_a_program_s_own_words_are_no_message() -> None:
    """Where a turn has nothing but a program's reminder, the user's words are those before it."""
    found = resolve(Prompt(text="<system-reminder>\nThe file was changed.\n</system-reminder>", before=ASK))
    assert found.ask.decode() == ASK or found.text.decode() == ASK


def test_disguised_letters_are_read_as_what_they_look_like() -> None:
    """Cyrillic and Greek letters among Latin ones, full-width letters and invisible characters change nothing."""
    assert (
        with_plain_marks("Рrоvе thаt \u200bthe\u200d ｓｅｒｉｅｓ соnverges".encode())
        == b"Prove that the series converges"
    )


@pytest.mark.parametrize(
    "text",
    [
        "Докажите, что ряд сходится. Почему?",
        "Αποδείξτε ότι η σειρά συγκλίνει.",
        "漢字とかなそして한글",
        "naïve café",
    ],
)
def test_other_alphabets_stay_as_they_are(text: str) -> None:
    """Russian and Greek are no disguise."""
    assert with_plain_marks(text.encode()).decode() == text


def test_an_ask_at_either_end_of_megabytes_is_found() -> None:
    """A label in what is searched of a long message, at its start as at its end."""
    material = "lorem ipsum dolor sit amet, consectetur adipiscing elit.\n" * (4 * SEARCHED_BYTES // 50)
    assert asked(Prompt(text=f"Context:\n{material}\nQuestion: {ASK}\nAnswer:")) == ASK
    assert asked(Prompt(text=f"Question: {ASK}\n\nContext:\n{material}")) == ASK


def test_any_text_is_resolved() -> None:
    """Random signs, labels, tags and fences never fail, and what is read is never longer than what was said."""
    draw = random.Random(0)
    parts = [
        "Question:",
        "Answer:",
        "<task>",
        "</task>",
        "```",
        "\n",
        "\n\n",
        "漢字。",
        "the text",
        "?",
        " ",
        "{",
        '"',
        "---\n",
        "é",
        "Hi!",
        ".",
    ]
    for _ in range(300):
        text, system = ("".join(draw.choices(parts, k=draw.randrange(60))) for _ in range(2))
        found = resolve(Prompt(text=text, system=system))
        assert len(found.text) <= len(text.encode()) + len(system.encode()) + 2


@pytest.mark.skipif(COMPILED is None, reason="nothing is compiled here")
def test_the_compiled_rules_are_those_in_python() -> None:
    """Byte by byte, in every template and in heaps of labels, tags, fences and letters of four alphabets."""
    assert COMPILED is not None
    draw = random.Random(1)
    parts = [
        "Question:",
        "\nAnswer: x",
        "<task>",
        "</task>",
        "<userRequest>",
        "```",
        "\n",
        "\n\n",
        "漢字。",
        "the text",
        "?",
        " ",
        "{",
        '"',
        "\n---\n",
        "é",
    ]
    parts += [
        "Hi!",
        ".",
        "Рrоvе",
        "Докажи",
        "\u200b",
        "ｓ",
        "# Task\n",
        "Thanks a lot.",
        "List the dates.",
        "It rained all day.",
        ASK,
    ]
    prompts = [Prompt(text=text.replace("{q}", ASK).replace("{c}", CONTEXT)) for text in TEMPLATES.values()]
    prompts += [
        Prompt(text="".join(draw.choices(parts, k=draw.randrange(80))), system="".join(draw.choices(parts, k=9)))
        for _ in range(200)
    ]
    prompts += [Prompt(text="".join(draw.choices(parts, k=6_000)))]
    for prompt in prompts:
        data, system, settled = to_search(prompt)
        assert COMPILED.parts(data, system, settled=settled) == texts_of(prompt)
