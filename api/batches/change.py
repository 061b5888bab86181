"""Changes of batches by people and programs that stand in the audit log."""

from accounts.audit.entry import Actor
from accounts.audit.log import AuditLog
from api.web.changing import changing
from api.webhooks.callbacks import CallbackDesk, SecretState
from api.webhooks.outbox import Outbox
from proxy.batch.batch import Batch
from proxy.batch.files import Owner
from proxy.batch.store import BatchStore


async def rotate_secret(log: AuditLog, actor: Actor, desk: CallbackDesk, owner: Owner) -> SecretState:
    """Make a team's next signing secret the current one; for a day the one before signs, too."""
    async with changing(log, actor, "callback_secret.rotated", owner.organisation_id, team_id=owner.team_id) as change:
        state = await desk.secrets.within(change.within).rotate(owner.team_id)
        change.tell("callback_secret", owner.team_id, {"version": state.version - 1}, {"version": state.version})
    return state


async def cancel_batch(log: AuditLog, actor: Actor, batches: BatchStore, owner: Owner, batch_id: str) -> Batch:
    """Cancel a batch. Raises BatchNotFound or BatchEnded."""
    async with changing(log, actor, "batch.cancelled", owner.organisation_id, team_id=owner.team_id) as change:
        store = batches.within(change.within)
        before = await store.find(owner, batch_id)
        after = await store.cancel(owner, batch_id)
        change.tell("batch", batch_id, {"status": before.status}, {"status": after.status})
    return after


async def resend_callback(log: AuditLog, actor: Actor, owner: Owner, batch_id: str, message_id: str) -> bool:
    """Have the message of a batch's end sent once more; False for one that was never put."""
    async with changing(log, actor, "callback.resent", owner.organisation_id, team_id=owner.team_id) as change:
        is_there = await Outbox(change.within).resend(message_id)
        if is_there:
            change.add("batch", batch_id, None, {"message": message_id})
    return is_there
