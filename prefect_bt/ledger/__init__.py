"""Projects, jobs, attempts and events: records in the store, fenced by epochs."""
