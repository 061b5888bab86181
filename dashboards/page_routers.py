"""List of the routers of all pages."""

from typing import Final

from fastapi import APIRouter

from dashboards.account import page as account
from dashboards.alerts import page as alerts
from dashboards.api_docs import page as api_docs
from dashboards.ask import page as ask
from dashboards.audit import page as audit
from dashboards.batch import page as batches
from dashboards.budgets import calendar_page
from dashboards.budgets import organisation_page as organisation_budgets
from dashboards.budgets import page as budgets
from dashboards.caching import page as caching
from dashboards.end_users import page as end_users
from dashboards.finance import exports_page as exports
from dashboards.finance import month_page as month
from dashboards.finance import reconciliation_page as reconciliation
from dashboards.finance import reports_page as reports
from dashboards.finance import savings_page
from dashboards.finance import showback_page as showback
from dashboards.guard import page as guard
from dashboards.home import page as home
from dashboards.keys import page as keys
from dashboards.model_list import page as models
from dashboards.operations import classifier_page as classifier
from dashboards.operations import config_page as config
from dashboards.operations import decisions_page as decisions
from dashboards.operations import incidents_page as incidents
from dashboards.operations import measurements_page as measurements
from dashboards.operations import overview_page as overview
from dashboards.operations import pools_page as pools
from dashboards.operations import queues_page as queues
from dashboards.operations import rollouts_page as rollouts
from dashboards.operations import targets_page as targets
from dashboards.operations import traffic_page as traffic
from dashboards.people import members_page as members
from dashboards.people import page as people
from dashboards.playground import page as playground
from dashboards.policy import page as policy
from dashboards.prices import page as prices
from dashboards.requests import page as requests
from dashboards.sign_in import openid_page as oidc
from dashboards.sign_in import page as sign_in
from dashboards.sign_in import welcome
from dashboards.spend import page as spend
from dashboards.teams import page as teams

ROUTERS: Final[tuple[APIRouter, ...]] = (
    account.router,
    alerts.router,
    api_docs.router,
    ask.router,
    audit.router,
    batches.router,
    savings_page.router,
    exports.router,
    month.router,
    prices.router,
    reconciliation.router,
    reports.router,
    showback.router,
    caching.router,
    guard.router,
    home.router,
    models.router,
    oidc.router,
    classifier.router,
    config.router,
    decisions.router,
    incidents.router,
    measurements.router,
    overview.router,
    pools.router,
    queues.router,
    rollouts.router,
    targets.router,
    traffic.router,
    people.router,
    sign_in.router,
    budgets.router,
    calendar_page.router,
    organisation_budgets.router,
    keys.router,
    members.router,
    playground.router,
    policy.router,
    requests.router,
    spend.router,
    end_users.router,
    teams.router,
    welcome.router,
)
