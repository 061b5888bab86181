"""Fit the injection model. Serving never imports this folder."""
