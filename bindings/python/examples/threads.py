"""Limits without asyncio: in this process, or shared through Redis (`python threads.py redis://127.0.0.1/`)."""

import sys
from concurrent.futures import ThreadPoolExecutor

from sluicegate import Denied, Limiter, Policy, StoreError

LOGIN = Policy.gcra(5, per="1m", burst=3) & Policy.fixed_window(100, per="day")
REPORTS = Policy.concurrency(2, ttl="30s")


def login(limiter: Limiter, user: str) -> str:
    decision = limiter.take(f"login:{user}", LOGIN)
    if decision:
        return f"welcome, {decision.remaining} more"
    if decision.retry_after is None:
        return "never"
    return f"retry after {decision.retry_after.total_seconds():.1f} s"


def report(limiter: Limiter, number: int) -> str:
    try:
        with limiter.hold("reports", REPORTS, timeout=5, renew=True):
            return f"report {number}"
    except Denied as denied:
        return f"report {number}: {denied.decision.retry_after}"


def tokens(limiter: Limiter) -> int:
    hold = limiter.hold("tokens:team7", Policy.token_bucket(10_000, per="1h"), 4000, ttl=30)
    return hold.settle(2310).remaining if hold else 0


def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else None
    with Limiter.connect(url) if url else Limiter.in_memory() as limiter:
        for _ in range(4):
            print(login(limiter, "user7"))
        with ThreadPoolExecutor(4) as pool:
            print(*pool.map(lambda number: report(limiter, number), range(4)), sep="\n")
        print(tokens(limiter), "tokens left")
        both = limiter.take_all([("{llm}:requests", LOGIN), ("{llm}:tokens", "gcra:1/1s", 2)])
        print("binding key:", both.key, dict(both.headers()))


if __name__ == "__main__":
    try:
        main()
    except StoreError as error:
        sys.exit(str(error))
