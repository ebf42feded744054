"""Uploads of workspaces by S3's protocol: to this server, or to the store's bucket.

Begin with `routes`: a client asks for a credential, uploads one object with it by any S3 client,
and creates a job with that object. `staging` keeps the objects of this server until then.
"""
