"""Joining a Ray cluster: an address where nothing listens is an error at once."""

import socket
import time

import pytest

from primus_search.errors import InputError
from primus_search.exploration.engines.ray_engine import join


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_nothing_listens_is_refused_within_seconds(scheme: str) -> None:
    with socket.socket() as taken:  # bound and not listening: no other process can take the port
        taken.bind(("127.0.0.1", 0))
        started = time.monotonic()
        with pytest.raises(InputError, match="no Ray cluster answers there"):
            join(f"{scheme}127.0.0.1:{taken.getsockname()[1]}")
        assert time.monotonic() - started < 10
