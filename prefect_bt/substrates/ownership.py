"""Owning a job on this machine, for flows: see prefect_bt.node.ownership."""

from prefect_bt.node.ownership import hold_job, is_owned

__all__ = ["hold_job", "is_owned"]
