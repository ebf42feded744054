"""The machine that the tests of substrates run on."""

from tests.node_agent.conftest import mapped_rig, rig

__all__ = ["mapped_rig", "rig"]
