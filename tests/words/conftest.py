import pytest
import toy_family


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    """The toy family, planted for this test."""
    return toy_family.plant(monkeypatch)
