"""Every page, in one list."""

from typing import Final

from fastapi import APIRouter

from proxy.pages import account, api_docs, audit, home, oidc, people, sign_in, welcome
from proxy.pages.finance import claim, exports, month, prices, reconciliation, reports, showback
from proxy.pages.operations import classifier, config, decisions, overview, pools, queues, targets
from proxy.pages.team import budgets, keys, members, policy, requests, teams

ROUTERS: Final[tuple[APIRouter, ...]] = (
    account.router,
    api_docs.router,
    audit.router,
    claim.router,
    exports.router,
    month.router,
    prices.router,
    reconciliation.router,
    reports.router,
    showback.router,
    home.router,
    oidc.router,
    classifier.router,
    config.router,
    decisions.router,
    overview.router,
    pools.router,
    queues.router,
    targets.router,
    people.router,
    sign_in.router,
    budgets.router,
    keys.router,
    members.router,
    policy.router,
    requests.router,
    teams.router,
    welcome.router,
)
