"""What `sits bench mesh` measures: groups of figures; docs/benchmarks.md explains them."""
