"""Whether the migration depends on how a program is written: refactored programs, migrated and run against the old ones."""
