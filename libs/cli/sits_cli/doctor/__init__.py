"""What `sits doctor` looks at, one module for each part of an installation."""
