"""The stable address of a serving deployment: a reverse proxy in front of its revisions.

A request goes to the revision of `route.json` when it arrives, and stays there until it is
answered. While there is no route, or the server accepts no connection, the request waits. Begin
with `router`, then `proxy`. The files in the state folder:

    <state dir>/deployments/<quoted name>/
        listen.json   {"host", "port"}: the router's address; chosen once
        route.json    {"revision", "target", "models"}: replaced when a revision is promoted
        key.json      salt and hash of the API key, 0600; without it requests need no key
        engine.secret the keys of the deployment's servers are derived from it, 0600
        router.json   the router's process
        router.log    its output
        starting.lock held while the router is looked for, started or stopped

`GET /_router/status` tells this machine which revision serves and how many requests are in flight.
"""
