"""The data plane's HTTP/1.1 server: connections, their requests and replies, and what they may cost. It knows no models."""
