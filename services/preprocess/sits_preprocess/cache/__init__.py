"""The response cache: answers that are given again to who asks the same."""
