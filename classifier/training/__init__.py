"""Training and evaluation of the classifier. Serving code never imports this."""
