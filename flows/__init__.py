"""The Prefect flows: `train`, `serve`, `mirror_weights`, `deploy_checkpoints`, `reconcile`.

A flow is short and reads like a table of contents; its steps are in `tasks`. Begin with `train`.
"""
