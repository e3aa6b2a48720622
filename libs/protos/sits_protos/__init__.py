"""Messages of the mesh (`v1`) and of the Open Inference Protocol (`oip`)."""
