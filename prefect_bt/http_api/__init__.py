"""The Training API: the HTTP server that `truss`, other clients and `prefect-bt --remote` use.

Begin with `app`, which has the routes of all resources, then `access`: every request has a key, and
a key sees the projects of its team. A route checks, calls the function that the command line calls,
and returns its document. `docs/http-api.md` has the routes; the paths, fields and answers are those
of the hosted service.
"""
