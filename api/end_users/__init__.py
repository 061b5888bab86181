"""/v1/end_users and /v1/admin/teams/{team_id}/end_users: how one end user of a team stands."""
