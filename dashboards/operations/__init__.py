"""The operators' pages and API: problems, targets, pools, queues, live requests, classifier and configuration."""
