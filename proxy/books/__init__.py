"""The books as people, programs and the gateway's own rounds use them: lists, claims, prices in effect, daily reports."""
