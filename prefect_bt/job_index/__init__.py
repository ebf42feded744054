"""The index of ended jobs: a cache of the store in the state folder, so that lists are fast.

The store is the truth; decision 014 says how a change in it is noticed. Begin with `entries`;
`database` is the SQLite file, in the folder `catalogue/`.
"""
