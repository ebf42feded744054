"""Run programs and config files that were written for truss.

Begin with `modules`, which replace truss while a config file is loaded; `functions` has the
functions of truss_train, `conversion` converts the objects of an installed truss.
"""
