"""Every plain route of the API, in one list; those of /v1/admin are in `admin_routers`."""

from typing import Final

from fastapi import APIRouter

from dashboards.batch import batches_api as batches
from dashboards.batch import files_api as files
from dashboards.batch import messages_api as message_batches
from dashboards.batch import own_api as own_batches
from dashboards.budgets import api as budgets
from dashboards.feedback import api as feedback
from dashboards.finance import focus_api as focus
from dashboards.finance import litellm_spend_api as litellm_shapes
from dashboards.finance import organization_api as organization
from dashboards.finance import savings_api as savings
from dashboards.finance import usage_api as usage
from dashboards.fleet import api as fleet
from dashboards.fleet import prefixes_api as prefixes
from dashboards.fleet import rollouts_api as rollouts
from dashboards.limits import api as limits
from dashboards.metrics import api as metrics
from dashboards.model_list import api as models
from dashboards.operations import api as operations
from dashboards.policy import api as policy
from dashboards.prices import api as price_routes
from dashboards.responses import api as responses
from dashboards.responses import conversations_api as conversations

ROUTERS: Final[tuple[APIRouter, ...]] = (
    models.router,
    responses.router,
    conversations.router,
    usage.router,
    focus.router,
    savings.router,
    organization.router,
    litellm_shapes.router,
    policy.router,
    price_routes.router,
    budgets.router,
    limits.router,
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
