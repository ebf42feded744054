"""Checkpoint files of a store in a local folder, under addresses that anyone can read for a while.

One process a store and machine. It outlives the command that started it, and ends itself when it
was of no use for a week. What it leaves in the state folder:

    <state dir>/files/<digest of the store's folder>/
        key           what signs the addresses, 0600; made once, so that addresses outlive servers
        server.json   where the server listens, and which process it is (see running)
        server.log    what it printed
        lock          held while one is looked for, started or stopped

An address is `<base>/<object key>?expires=<epoch seconds>&signature=<hex>` (see addresses).
"""
