"""Webhooks to the operator's receivers: kept in an outbox, signed per Standard Webhooks, and retried until accepted."""
