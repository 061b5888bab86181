"""/v1/admin/teams: teams and their policies."""
