"""The strategy my-strategy."""
