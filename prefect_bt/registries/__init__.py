"""Pull images onto a Docker Engine, with a registry's credentials."""
