"""Where programs ask what a model is: whether it is wrapped, by what, and what they do then."""
