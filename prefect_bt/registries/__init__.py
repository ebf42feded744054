"""Pull images onto a Docker Engine, with a registry's credentials.

Begin with `pull`; `credentials` has the login methods, `pull_errors` the causes and remedies.
"""
