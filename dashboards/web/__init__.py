"""What pages and APIs share: rights, forms, bodies, parameters, and the parts of the gateway that serves them."""
