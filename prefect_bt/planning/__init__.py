"""Make a gang plan from a definition and a context, or return every reason why not. Pure.

Begin with `planner`; `plan` is its result, `validation` has the reasons, `allocation` the amounts.
"""
