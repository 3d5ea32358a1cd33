"""The fallbacks' source: real code that is copied as text into migrated repositories. Nothing here imports this project."""
