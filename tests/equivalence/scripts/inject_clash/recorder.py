"""A user's module that happens to be called like one of ours."""

NAME = "the user's recorder"
