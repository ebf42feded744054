"""The download of a source's files. Begin with `downloader`."""
