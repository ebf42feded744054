"""The Prefect server and worker that `prefect-bt up` starts and keeps running."""
