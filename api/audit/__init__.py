"""/v1/admin/audit: the audit log, filtered and exported."""
