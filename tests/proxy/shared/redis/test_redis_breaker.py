"""When a shared Redis is given up, and when it is tried again."""

from proxy.shared.redis.redis_breaker import RedisBreaker


def test_only_failures_in_a_row_open_it() -> None:
    """Five in a row are too many, and one answer in between begins anew."""
    breaker = RedisBreaker(5, 0.25)
    breaker.close(0.0)
    assert [breaker.failed() for _ in range(4)] == [False] * 4
    breaker.answered()
    assert [breaker.failed() for _ in range(5)] == [False, False, False, False, True]


def test_a_connection_that_lasted_is_made_anew_at_once() -> None:
    """One that broke after a while is no sign that the next one will."""
    breaker = RedisBreaker(5, 0.25, steady_s=5.0)
    breaker.close(100.0)
    assert breaker.closed
    assert breaker.open(105.0) == 0.0
    assert not breaker.closed


def test_connections_that_break_again_and_again_are_made_ever_less_often() -> None:
    """Each costs waiting callers a time-out, so the waits grow, up to a bound, and start anew once one has lasted."""
    breaker = RedisBreaker(5, 0.25, steady_s=5.0)
    waits = []
    for now in range(8):
        breaker.close(float(now))
        waits.append(breaker.open(now + 0.5))
    assert waits == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]
    breaker.close(100.0)
    assert breaker.open(106.0) == 0.0


def test_one_that_never_closed_is_tried_at_its_interval() -> None:
    """Nothing broke, it is only still away."""
    assert RedisBreaker(5, 0.25).open(7.0) == 0.25


def test_failures_before_it_closed_do_not_count() -> None:
    """Closing begins a new row."""
    breaker = RedisBreaker(2, 0.25)
    breaker.failed()
    breaker.close(0.0)
    assert not breaker.failed()
