"""Never reached: the trainer that uses it is not the one that runs."""
