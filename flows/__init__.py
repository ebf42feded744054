"""The Prefect flows: `train`, `serve`, `mirror_weights`, `deploy_checkpoints`, `reconcile`.

A flow is short; its steps are in `tasks`. Begin with `train`.
"""
