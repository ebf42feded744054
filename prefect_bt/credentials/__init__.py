"""Secrets, their redaction, and identities at cloud providers.

Begin with `secrets`, which resolves references to values; `redaction` removes the values from text.
"""
