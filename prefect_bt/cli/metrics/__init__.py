"""Commands about metrics of jobs: `metrics`."""
