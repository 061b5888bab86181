"""Messages in other shapes than Standard Webhooks: words for Slack and for mail."""

import html
import json
from email.message import EmailMessage
from typing import Any, Final

import msgspec

MOST_CHARS: Final = 3_000
_SUBJECT_CHARS: Final = 120


class _Envelope(msgspec.Struct):
    type: str = ""
    data: Any = None


def words_of(body: bytes) -> str:
    """Put a message in words: its `text`, or else its type with its fields, cut to MOST_CHARS."""
    try:
        told = msgspec.json.decode(body, type=_Envelope)
    except msgspec.MsgspecError:
        return "A message that cannot be read."
    fields = told.data if isinstance(told.data, dict) else {}
    text = fields.get("text")
    if not isinstance(text, str):
        plain = (f"{name}: {value}" for name, value in fields.items() if not isinstance(value, (dict, list)))
        text = f"{told.type}\n" + "\n".join(plain)
    return text[:MOST_CHARS]


def slack_body(body: bytes) -> bytes:
    """Return the message as Slack's incoming webhooks read it. Names from our data cannot mention or link anything."""
    return json.dumps({"text": html.escape(words_of(body), quote=False)}).encode()


def mail_of(body: bytes, message_id: str, sender: str, to: tuple[str, ...]) -> EmailMessage:
    """Return the message as mail. Its id is the same at every try, so that a mailbox shows it once."""
    words = words_of(body)
    mail = EmailMessage()
    subject = " ".join(words.split())[:_SUBJECT_CHARS]
    mail["Subject"] = f"Weighbridge: {''.join(each for each in subject if each.isprintable())}"
    mail["From"] = sender
    mail["To"] = ", ".join(to)
    plain_id = "".join(each if each.isalnum() else "-" for each in message_id)
    mail["Message-ID"] = f"<{plain_id}@{sender.rpartition('@')[2]}>"
    mail.set_content(words)
    return mail
