"""The pipeline in Prefect's words: flows that read like contents pages, tasks one call deep."""
