"""The only door to facts and flow: what rules may ask, and the steps that led to each answer."""
