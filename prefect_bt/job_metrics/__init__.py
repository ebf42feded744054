"""Metrics of jobs: what nodes sample and trainers report, and what follows from it.

Begin with `node_metrics`, the file of one node.
"""
