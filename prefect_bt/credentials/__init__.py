"""Secrets, their redaction, and identities at cloud providers."""
