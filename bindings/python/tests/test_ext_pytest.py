"""The fixtures for tests of users."""

pytest_plugins = ["pytester"]


def test_fixtures_in_one_test_share_a_clock_and_a_store(pytester):
    pytester.makepyfile(
        """
        import asyncio

        def test_take_after_advance_is_allowed(sluicegate_limiter, sluicegate_aio_limiter, sluicegate_clock):
            assert sluicegate_limiter.take("user7", "gcra:1/1m")
            assert not asyncio.run(sluicegate_aio_limiter.take("user7", "gcra:1/1m"))
            sluicegate_clock.advance(60)
            assert sluicegate_limiter.take("user7", "gcra:1/1m")

        def test_take_in_a_new_test_is_allowed(sluicegate_limiter):
            assert sluicegate_limiter.take("user7", "gcra:1/1m")
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=2)
