"""What each tenant has used of its limits: requests and tokens per minute, and requests at once.

Rates are token buckets that hold one minute's allowance and fill steadily: a tenant that was quiet may use a minute's worth at once,
and in any t minutes never more than t + 1 minutes' worth. Tokens are set aside for the worst case when a request is let in, and what it
did not use is given back at its end; so a limit is never exceeded, not even by what still runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from server.access.tenant import Tenant
from server.errors import InvalidRequestError, OverloadedError

MINUTE = 60.0
BUSY_RETRY = 1.0
"""Seconds: when one of a tenant's requests will end is not known."""
EPSILON = 1e-9
"""Of a token: what rounding may lose."""


class Bucket:
    """An allowance that fills over a minute. Its size is given at each use, since a changed access file may change it."""

    def __init__(self, size: float, now: float) -> None:
        self._level = size
        self._seen = now

    def seconds_until(self, amount: float, size: float, now: float) -> float:
        """When ``amount`` will be there; 0 = now."""
        self._fill(size, now)
        missing = amount - self._level
        return missing * MINUTE / size if missing > EPSILON else 0.0

    def take(self, amount: float) -> None:
        self._level -= amount

    def give_back(self, amount: float, size: float) -> None:
        self._level = min(size, self._level + amount)

    def _fill(self, size: float, now: float) -> None:
        self._level = min(size, self._level + (now - self._seen) * size / MINUTE)
        self._seen = now


class _Meter:
    def __init__(self, tenant: Tenant, now: float) -> None:
        self.running = 0
        self.requests = Bucket(tenant.requests_per_minute or 0, now)
        self.tokens = Bucket(tenant.tokens_per_minute or 0, now)


class Lease:
    """One request's share of its tenant's limits, from its arrival to its end."""

    def __init__(self, quotas: Quotas, tenant: Tenant, meter: _Meter) -> None:
        self.tenant = tenant
        self._quotas = quotas
        self._meter = meter
        self._reserved = 0
        self._over = False

    def reserve(self, tokens: int) -> None:
        """Set aside what the request can use at most, instead of what was set aside before. Raises OverloadedError, and InvalidRequestError where no waiting
        would help."""
        size = self.tenant.tokens_per_minute
        if size is None:
            return
        self._meter.tokens.give_back(self._reserved, size)
        self._reserved = 0
        if tokens > size:
            raise InvalidRequestError(
                "max_tokens", f"prompt and outputs may come to {tokens} tokens, your limit is {size} per minute"
            )
        wait = self._meter.tokens.seconds_until(tokens, size, self._quotas.clock())
        if wait:
            raise OverloadedError(
                f"your limit of {size} tokens per minute is used up", reason="tenant_tokens", retry_after=wait
            )
        self._meter.tokens.take(tokens)
        self._reserved = tokens

    def end(self, used_tokens: int) -> None:
        """The request is over; ``used_tokens`` of its prompt and its outputs count. Idempotent."""
        if self._over:
            return
        self._over = True
        self._meter.running -= 1
        if self.tenant.tokens_per_minute is not None:
            unused = max(0, self._reserved - used_tokens)
            self._meter.tokens.give_back(unused, self.tenant.tokens_per_minute)


class Quotas:
    """Event loop only. One record for each tenant that ever called; tenants come from the access file alone, so they are few."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._meters: dict[str, _Meter] = {}

    def enter(self, tenant: Tenant) -> Lease:
        """Let a request in. Raises OverloadedError, and then nothing was used up."""
        now = self.clock()
        meter = self._meters.get(tenant.name)
        if meter is None:
            meter = self._meters[tenant.name] = _Meter(tenant, now)
        if tenant.max_concurrent is not None and meter.running >= tenant.max_concurrent:
            raise OverloadedError(
                f"{meter.running} of your requests are open, your limit is {tenant.max_concurrent}",
                reason="tenant_concurrency",
                retry_after=BUSY_RETRY,
            )
        size = tenant.requests_per_minute
        if size is not None:
            wait = meter.requests.seconds_until(1, size, now)
            if wait:
                raise OverloadedError(
                    f"your limit of {size} requests per minute is used up", reason="tenant_requests", retry_after=wait
                )
            meter.requests.take(1)
        meter.running += 1
        return Lease(self, tenant, meter)

    def running(self, tenant: Tenant) -> int:
        """Its requests that are open."""
        meter = self._meters.get(tenant.name)
        return meter.running if meter is not None else 0

    def check_integrity(self) -> None:
        """Raises AssertionError when the books do not balance."""
        negative = [name for name, meter in self._meters.items() if meter.running < 0]
        if negative:
            raise AssertionError(f"tenants {negative} have fewer than no requests open")
