"""The model repository: Triton's layout on disk, configurations, loading, and what is loaded."""
