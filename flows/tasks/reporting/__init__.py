"""What people see of a job on its Prefect run: events, a card, sampled logs, progress bars.

Begin with `report`.
"""
