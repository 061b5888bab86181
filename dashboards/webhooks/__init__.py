"""Messages to the operator's own receivers: kept in an outbox, signed as Standard Webhooks, sent until they are taken."""
