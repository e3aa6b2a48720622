"""One module a command: reads options, asks the mesh, prints."""
