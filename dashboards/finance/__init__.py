"""Savings, month close, showback, reconciliation and exports: the pages and APIs of finance."""
