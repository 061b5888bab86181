"""The beginning of a question: whether it may be asked now, and by whom its answer is paid."""

from accounts.access import Principal
from api.ask.asker import asker_of
from api.ask.conversation import MOST_QUESTION_CHARS, Conversation
from api.ask.store import AskSetting, count_question, read_setting
from api.web.changing import looking
from api.web.gateway import Gateway
from cost.times import HOUR_US, wall_us
from proxy.errors import AskLimit, AskOff, BadRequest


async def setting_of(gateway: Gateway, organisation_id: str) -> AskSetting | None:
    """Return an organisation's setting; None while Ask is off. Raises ChangesUnavailable."""
    async with looking():
        return await read_setting(gateway.database, organisation_id)


async def begun(gateway: Gateway, principal: Principal, question: str) -> Conversation:
    """Return the conversation that answers a question, which counts from now on. Raises AskOff, AskLimit, BadRequest, and
    ChangesUnavailable.
    """
    text = " ".join(question.split())
    if not text or len(text) > MOST_QUESTION_CHARS or not text.isprintable():
        raise BadRequest(f"A question has 1 to {MOST_QUESTION_CHARS} printable characters.", param="question")
    setting = await setting_of(gateway, principal.organisation_id)
    if setting is None:
        raise AskOff(
            "Ask is off for your organisation; an administrator switches it on (PUT /v1/admin/ask, or the page Ask)."
        )
    asker = await asker_of(gateway, principal)
    async with looking():
        accounts = gateway.identity.accounts
        caller = await accounts.caller_of(setting.key_id)
        # A key of somebody else would let one organisation spend another's money.
        if (
            caller is None
            or caller.organisation_id != principal.organisation_id
            or await accounts.is_blocked(setting.key_id)
        ):
            raise AskOff(
                f"The key that Ask is booked to, of the team {setting.team_id}, is blocked or revoked; an administrator unblocks it or "
                "switches Ask on again."
            )
        now_us = wall_us()
        asked = await count_question(gateway.database, principal, now_us)
    if asked > setting.questions_an_hour:
        raise AskLimit(
            f"That is more than the {setting.questions_an_hour} questions an hour that one may ask; ask again in the next hour.",
            retry_after_s=(HOUR_US - now_us % HOUR_US) / 1_000_000,
        )
    return Conversation(asker, caller, gateway.jobs.answering, text)
