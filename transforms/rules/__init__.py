"""The rules of migration, one file each."""
