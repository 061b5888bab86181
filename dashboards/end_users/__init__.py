"""End users: what each one that requests name spent and asked, and how the budgets stand."""
