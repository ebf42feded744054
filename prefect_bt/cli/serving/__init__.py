"""Commands about serving deployments."""
