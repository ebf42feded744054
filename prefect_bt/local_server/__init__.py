"""The Prefect server and worker that `prefect-bt up` starts and keeps running.

Begin with `server` (`up`, `down`); `watchdog` restarts both and recovers abandoned jobs,
`discovery` finds the server from any process.
"""
