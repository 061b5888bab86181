"""/v1/limits, /v1/queues and /v1/admin/limits."""
