"""The control plane's API for programs.

A folder is the path of its routes: `/v1/usage` is `api/usage/routes.py`, `/v1/admin/budgets` is `api/budgets/admin.py`.
A `change.py` holds the changes that the admin API, the pages and the command line share, each with its audit entry:

    curl -H "authorization: Bearer $KEY" "$GATEWAY/v1/usage?start=2026-11-01&group_by=team"
"""
