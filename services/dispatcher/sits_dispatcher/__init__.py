"""Stage 2: decides which executor runs which micro-batch."""
