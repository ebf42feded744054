"""Lists of jobs, their documents, the overview of a store, and the progress of one job."""
