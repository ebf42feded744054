"""Pure: a definition and a context become a gang plan, or every reason why not.

Begin with `planner`; `plan` is its result, `validation` has the reasons, `allocation` the numbers.
"""
