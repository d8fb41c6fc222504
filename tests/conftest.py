"""The fast tests draw the same examples every time: what is green stays green. `make test-long` draws new ones."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("exploring", deadline=None, print_blob=True)
settings.load_profile("repeatable")  # unless pytest gets --hypothesis-profile
