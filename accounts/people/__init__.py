"""Sign-in of people: passwords, OpenID, sessions, one-time links and lockout."""
