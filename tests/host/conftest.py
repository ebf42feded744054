"""The machine that the tests of nodes run on."""

from tests.node.conftest import mapped_rig, rig

__all__ = ["mapped_rig", "rig"]
