"""/v1/policy: the preview of a team's policy on its past traffic, and changes of policies."""
