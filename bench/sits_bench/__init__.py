"""What the benchmarks of this folder share. Not a distribution: it works in a checkout only."""
