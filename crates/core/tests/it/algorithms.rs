//! The cases that users expect, each with its name. They are the traces of the conformance kit, which every store
//! runs.

use sluicegate_conformance::{CoreSubject, cases, check_case, check_keys};

macro_rules! cases {
    ($($test:ident: $name:literal,)*) => {
        $(#[test]
        fn $test() {
            check_case(&mut CoreSubject::default(), $name);
        })*

        #[test]
        fn cases_of_the_kit_are_all_listed() {
            assert_eq!(cases().collect::<Vec<_>>(), [$($name),*]);
        }
    };
}

cases! {
    cl_throttle_readme_example_returns_its_integers: "the README's example of CL.THROTTLE",
    gcra_ten_per_minute_admits_one_every_six_seconds: "gcra: ten at once, then one every six seconds",
    gcra_burst_1_paces_like_a_lock_with_a_ttl: "gcra with burst 1: one per T, like a lock with a TTL of T",
    gcra_spent_burst_returns_one_unit_per_interval: "gcra: a spent burst returns one unit per interval",
    gcra_cost_above_the_capacity_never_passes: "gcra: a cost above the capacity never passes",
    gcra_fractional_interval_does_not_drift: "gcra: an interval that is not a whole number of microseconds does not drift",
    gcra_idle_key_admits_exactly_its_burst: "gcra: an idle key admits exactly its burst",
    charge_above_the_capacity_is_recorded_and_refund_returns_it: "charge: units above the capacity are recorded, and refund returns them",
    charge_debt_saturates_at_thirty_five_years: "charge: a debt saturates at thirty-five years",
    reserve_future_units_are_taken_at_once: "reserve: units of the future are taken at once",
    gcra_greatest_rate_is_exact: "gcra: the greatest rate is exact",
    token_bucket_continuous_refill_admits_costs: "token bucket: continuous refill, with costs",
    token_bucket_borrow_is_paid_back_afterwards: "token bucket with borrow: the cost is paid back afterwards",
    leaky_bucket_drains_over_time: "leaky bucket: drains over time",
    leaky_queue_sends_one_per_interval_and_denies_overflow: "leaky queue: sends one per interval, in order, and denies overflow",
    leaky_queue_spaces_departures_by_cost: "leaky queue: spaces departures by cost",
    reserve_leaky_queue_waits_for_its_departure: "reserve: under a leaky queue it waits for its departure",
    token_bucket_interval_refill_adds_tokens_in_steps: "token bucket: interval refill adds tokens in steps",
    token_bucket_full_again_restarts_its_steps: "token bucket: a bucket that is full again restarts its steps",
    token_bucket_interval_refill_borrow_is_paid_back_in_steps: "token bucket with interval refill and borrow: the cost is paid back in steps",
    charge_and_refund_interval_refill_keep_the_steps: "charge and refund: interval refill keeps its steps",
    charge_debt_interval_refill_saturates: "charge: a debt under interval refill saturates",
    migrate_interval_bucket_keeps_usage_and_steps: "migrate: an interval bucket keeps its usage and its steps",
    interval_bucket_straggler_before_a_step_refills_nothing: "interval refill: a straggler just before a step does not refill the bucket again",
    interval_bucket_clock_set_back_keeps_the_units_used: "interval refill: after a clock is set back by an interval or more, the last step is taken as then",
    fixed_window_starts_at_the_first_request: "fixed window: starts at the first request",
    fixed_window_aligned_to_the_clock_passes_twice_the_limit_around_an_edge: "fixed window aligned to the clock: twice the limit passes around an edge",
    fixed_window_of_milliseconds_ends_on_time: "fixed window: one of milliseconds ends on time",
    fixed_window_calendar_month_ends_with_the_month: "fixed window: a calendar month ends with the month",
    fixed_window_calendar_day_has_23_or_25_hours_at_a_clock_change: "fixed window: a calendar day has 23 or 25 hours at a clock change",
    fixed_window_calendar_week_begins_on_monday_and_year_on_january_first: "fixed window: a calendar week begins on Monday, a year on the first of January",
    fixed_window_denied_requests_are_not_recorded: "fixed window: denied requests are not recorded",
    fixed_window_count_all_records_denied_requests: "fixed window with count=all: denied requests are recorded",
    fixed_window_charge_ends_with_its_window: "fixed window: a charge ends with its window",
    fixed_window_refund_applies_to_the_open_window: "fixed window: a refund applies to the open window",
    fixed_window_clock_step_back_delays_by_at_most_the_step: "fixed window: a clock that steps back delays a key by at most the step",
    fixed_window_straggler_before_an_edge_counts_in_the_new_window: "fixed window: a straggler just before the edge of a window counts in the new one",
    fixed_window_straggler_before_midnight_opens_no_second_day: "fixed window: a straggler just before midnight opens no second calendar day",
    fixed_window_straggler_before_midnight_in_a_time_zone_is_denied: "fixed window: a straggler just before midnight in a time zone, and before a month",
    fixed_window_clock_set_back_keeps_the_count: "fixed window: a clock that is set back by a window or more opens one as of then, with the count kept",
    fixed_window_straggler_under_another_rule_is_denied: "fixed window: a straggler opens no second window under another rule",
    migrate_window_with_new_alignment_keeps_its_start: "migrate: a window with a new alignment keeps its start",
    migrate_calendar_window_ends_at_its_midnight: "migrate: a calendar window ends at its midnight, under any policy",
    sliding_log_event_exactly_one_period_old_has_expired: "sliding log: an event exactly one period old has expired",
    sliding_log_retry_waits_for_enough_whole_events: "sliding log: retry waits for enough whole events",
    sliding_log_count_all_client_that_never_stops_is_never_allowed: "sliding log with count=all: a client that never stops is never allowed",
    sliding_log_charge_drops_events_without_effect: "sliding log: a charge drops events that no longer have an effect",
    sliding_log_refund_removes_the_newest_events: "sliding log: a refund removes the newest events",
    sliding_log_clock_step_back_keeps_its_events: "sliding log: a clock that steps back keeps its events",
    sliding_log_straggler_is_counted_at_the_newest_event: "sliding log: a straggler is counted at the time of the newest event",
    sliding_log_clock_set_back_dates_its_events_then: "sliding log: after a clock is set back by a period or more, events are dated then",
    migrate_log_with_keep_carries_usage_to_a_longer_period: "migrate: a log with keep carries its usage over to a longer period",
    sliding_log_keep_max_bounds_the_kept_units: "sliding log: keep-max bounds the kept units",
    sliding_counter_previous_window_is_weighted: "sliding counter: the previous window is weighted",
    sliding_counter_retry_may_reach_into_the_next_window: "sliding counter: retry may reach into the next window",
    sliding_counter_count_all_records_denied_requests: "sliding counter with count=all: denied requests are recorded",
    sliding_counter_refund_does_not_change_the_previous_window: "sliding counter: a refund does not change the previous window",
    migrate_counter_of_equal_period_keeps_both_counts: "migrate: a counter of equal period keeps both counts, of another period its estimate",
    sliding_counter_straggler_is_counted_in_the_new_window: "sliding counter: a straggler just before the edge of a window is counted in the new one",
    sliding_counter_clock_set_back_keeps_the_counts: "sliding counter: after a clock is set back by a window or more, its counts are those of the window of then",
    peek_returns_the_result_of_take_and_stores_nothing: "peek: returns the result of take, and stores nothing",
    take_cost_0_is_allowed_and_stores_nothing: "take: cost 0 is allowed and stores nothing",
    reserve_without_gcra_is_an_error: "reserve: an error unless every limit is of the gcra family",
    reset_used_key_becomes_unused: "reset: a used key becomes unused",
    policy_several_limits_are_all_or_nothing: "several limits: all or nothing",
    binding_among_equals_is_the_first_limit: "binding: among equals, the first limit",
    retry_never_is_greater_than_any_time: "retry: never is greater than any time",
    policy_count_all_records_denials_by_other_limits: "several limits with count=all: denials by other limits are recorded too",
    delay_several_limits_is_the_greatest: "delay: the greatest of several limits",
    policy_of_a_minute_and_a_day_enforces_both: "several limits: one per minute and one per day are both enforced",
    reset_existing_key_returns_one: "reset: returns 1 for an existing key",
    migrate_raised_limit_adds_the_difference_at_once: "migrate: a raised limit adds the difference at once",
    migrate_lowered_limit_denies_until_usage_has_drained: "migrate: a lowered limit denies until usage has drained",
    migrate_denied_request_stores_the_new_policy: "migrate: a denied request stores the new policy",
    migrate_peek_stores_nothing: "migrate: a peek stores nothing",
    migrate_to_another_algorithm_keeps_usage_rounded_up: "migrate: another algorithm keeps the units in use, rounded up",
    migrate_limits_pair_by_similarity: "migrate: limits pair by similarity",
    migrate_added_limit_is_unused_but_an_added_log_has_the_events: "migrate: an added limit is unused, but an added log has the events of the longest log",
    migrate_equal_number_of_limits_pairs_in_order: "migrate: an equal number of limits pairs in order",
    migrate_other_name_of_the_same_limit_changes_nothing: "migrate: another name of the same limit changes nothing",
    migrate_new_period_keeps_the_units_used: "migrate: a new period keeps the units used",
    reserve_denied_stores_the_state_under_the_new_policy: "migrate: a reserve that is denied stores the state under the new policy",
    reserve_of_0_stores_nothing: "migrate: a reserve of 0 stores nothing",
}

#[test]
fn keys_of_any_dimension() {
    check_keys(&mut CoreSubject::default());
}
