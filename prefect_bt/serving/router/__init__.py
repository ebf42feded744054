"""The stable address of a serving deployment: one process in front of its revisions.

Requests go to the revision that `route.json` names when they arrive, and stay there until they are
answered. While there is none, or it refuses connections, they wait. Begin with `app`, then `proxy`.
The files in the state folder:

    <state dir>/deployments/<quoted name>/
        listen.json   {"host", "port"}: where the router listens; chosen once
        route.json    {"revision", "target", "models"}: replaced when a revision is promoted
        key.json      salt and hash of the API key, 0600; without it requests need no key
        engine.secret  the keys of the deployment's servers are derived from it, 0600
        router.json   which process the router is
        router.log    its output
        router.lock   held by the router for as long as it lives
        starting.lock held while a router is looked for, started or stopped

`GET /_router/status` tells this machine which revision serves and how many requests are in flight.
"""
