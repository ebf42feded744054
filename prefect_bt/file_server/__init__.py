"""Checkpoint files of a store in a local folder, under signed URLs that expire.

One process per store and machine. It outlives the command that started it, and ends after a week
without use. Begin with `process`, which finds or starts it, then `app`. Its files:

    <state dir>/files/<digest of the store's folder>/
        key           signs the URLs, 0600; created once, so that URLs outlive servers
        server.json   address and process of the server
        server.log    its output
        lock          held while a server is looked for, started or stopped

A URL is `<base>/<object key>?expires=<epoch seconds>&signature=<hex>` (signed_urls.py).
"""
