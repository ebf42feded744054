"""Programs and config files that were written for truss.

Begin with `modules`, which stand in for truss while a config file is loaded; `functions` are those
of truss_train, `conversion` reads the objects of an installed truss.
"""
