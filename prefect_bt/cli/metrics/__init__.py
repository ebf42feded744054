"""Commands about jobs that wait for room: `queue`, `update`, `capacity`."""
