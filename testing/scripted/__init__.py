"""One scripted upstream, in this process and over a socket, in every dialect that providers speak."""
