"""Fixtures of the suite."""

import pytest
import pytest_asyncio
from kit import Clients, Relay


@pytest_asyncio.fixture
async def clients():
    """Makes clients, and stops them after the case."""
    made = Clients()
    yield made
    await made.stop()


@pytest.fixture
def relay():
    """The relay, with no rule left over from another case."""
    relay = Relay()
    relay.ask("clear")
    yield relay
    relay.ask("clear")
