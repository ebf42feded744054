"""The catalogue of ended jobs: a cache of the store in the state folder, so that lists are fast.

The store is the truth. Decision 014 says how a change in the store is noticed.
"""
