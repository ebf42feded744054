"""Commands for serving deployments.

`deploy` creates a revision: `resolve` combines its options, a config file and the answers to
`questions`. `deployments` has the commands for existing deployments.
"""
