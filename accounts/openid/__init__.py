"""Sign-in through OpenID providers: the protocol, and provisioning of people."""
