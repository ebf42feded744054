"""Commands about jobs and projects."""
