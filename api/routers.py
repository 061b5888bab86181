"""Every plain route of the API, in one list; those of /v1/admin are in `admin_routers`."""

from typing import Final

from fastapi import APIRouter

from api.ask import routes as ask
from api.batches import message_batches, own_batches
from api.batches import routes as batches
from api.budgets import routes as budgets
from api.end_users import routes as end_users
from api.feedback import routes as feedback
from api.files import routes as files
from api.fleet import prefixes
from api.fleet import rollout_routes as rollouts
from api.fleet import routes as fleet
from api.focus import routes as focus
from api.limits import routes as limits
from api.metrics import routes as metrics
from api.models import routes as models
from api.operations import routes as operations
from api.organization import routes as organization
from api.policy import routes as policy
from api.prices import routes as price_routes
from api.responses import conversations
from api.responses import routes as responses
from api.savings import routes as savings
from api.spend import routes as litellm_shapes
from api.usage import movers as usage_movers
from api.usage import routes as usage

ROUTERS: Final[tuple[APIRouter, ...]] = (
    models.router,
    responses.router,
    conversations.router,
    usage.router,
    usage_movers.router,
    ask.router,
    focus.router,
    savings.router,
    organization.router,
    litellm_shapes.router,
    policy.router,
    price_routes.router,
    budgets.router,
    limits.router,
    end_users.router,
    fleet.router,
    prefixes.router,
    rollouts.router,
    operations.router,
    feedback.router,
    files.router,
    batches.router,
    metrics.router,
    own_batches.router,
    message_batches.router,
)
