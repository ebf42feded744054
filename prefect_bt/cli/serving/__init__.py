"""Commands about serving deployments.

Begin with `deploy`: `resolve` turns options, a config file and answers into a request, `wait` waits
for the revision. `deployments` has the commands for what is deployed.
"""
