"""/v1/budgets and /v1/admin/budgets."""
