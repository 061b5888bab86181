"""The pages of a team: what it spends and on what, its policy, keys, budgets and members."""
