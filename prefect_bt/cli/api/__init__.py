"""Commands of the HTTP API: the server, its keys, and `truss` as its client."""
