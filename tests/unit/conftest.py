"""Settings of the tests of properties.

Their examples are the same in every run, and no example is too slow: what a run finds must be a
mistake of the change under test, not of a draw of the dice or of a busy machine.
`pytest --hypothesis-profile=default` draws new ones.
"""

from hypothesis import settings

settings.load_profile("ci")
