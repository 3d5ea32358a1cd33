"""Facts of each file, and the flow of values over all of them."""
