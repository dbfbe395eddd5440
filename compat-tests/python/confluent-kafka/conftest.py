"""Fixtures of the suite."""

import pytest
from kit import Relay


@pytest.fixture
def relay():
    """The relay, with no rule left over from another case."""
    relay = Relay()
    relay.ask("clear")
    yield relay
    relay.ask("clear")
