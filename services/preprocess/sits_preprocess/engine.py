"""From checked requests to answers: batches them, sends them out, splits the results."""
