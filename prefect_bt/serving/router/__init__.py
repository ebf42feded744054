"""The stable address of a serving deployment: one process, in front of whichever revision serves.

Requests go to the revision that `route.json` names when they arrive, and stay there until they are
answered. While there is none, or it refuses connections, they wait. What lies in the state folder:

    <state dir>/deployments/<quoted name>/
        listen.json   {"host", "port"}: where the router listens; chosen once
        route.json    {"revision", "target", "models"}: replaced by whoever promotes a revision
        key.json      salt and hash of the API key, 0600; not there: everybody may ask
        engine.secret  of which the keys of its servers are made, 0600
        router.json   which process it is
        router.log    what it printed
        router.lock   held by the router for as long as it lives
        starting.lock held while one is looked for, started or stopped

`GET /_router/status` tells this machine which revision serves and how many requests are in flight.
"""
