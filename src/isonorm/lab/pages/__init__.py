"""Pages to read results on, each one file that needs nothing beside it."""
