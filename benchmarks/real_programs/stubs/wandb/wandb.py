"""Never reached: logging to it is off."""
