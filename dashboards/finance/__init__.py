"""Savings, month close, showback, reconciliation and exports: pages and APIs of finance."""
