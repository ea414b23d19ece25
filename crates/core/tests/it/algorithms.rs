//! What people come for, each with its name. The cases themselves are the traces of the
//! conformance kit, which every store runs.

use sluicegate_conformance::{CoreSubject, cases, check_case, check_keys};

macro_rules! cases {
    ($($test:ident: $name:literal,)*) => {
        $(#[test]
        fn $test() {
            check_case(&mut CoreSubject::default(), $name);
        })*

        #[test]
        fn every_case_of_the_kit_is_here() {
            assert_eq!(cases().collect::<Vec<_>>(), [$($name),*]);
        }
    };
}

cases! {
    the_readme_example_of_cl_throttle: "the README's example of CL.THROTTLE",
    gcra_ten_at_once_then_one_each_six_seconds: "GCRA: ten at once, then one each six seconds",
    pacing_one_per_t_as_a_lock_with_a_ttl_of_t_does: "pacing: one per T, as a lock with a TTL of T does",
    a_spent_burst_returns_one_unit_per_interval: "a spent burst returns one unit per interval",
    a_cost_above_the_capacity_never_passes: "a cost above the capacity never passes",
    a_rate_that_is_no_whole_number_of_microseconds_does_not_drift: "a rate that is no whole number of microseconds does not drift",
    an_idle_key_admits_its_burst_and_no_more: "an idle key admits its burst and no more",
    a_token_bucket_refilled_continuously_with_costs: "a token bucket refilled continuously, with costs",
    a_token_bucket_refilled_in_steps: "a token bucket refilled in steps",
    a_bucket_that_is_full_again_begins_its_steps_anew: "a bucket that is full again begins its steps anew",
    a_token_bucket_with_borrowing_the_cost_is_paid_afterwards: "a token bucket with borrowing: the cost is paid afterwards",
    an_interval_bucket_with_borrowing: "an interval bucket with borrowing",
    a_leaky_bucket_as_a_meter_leaks: "a leaky bucket as a meter leaks",
    a_leaky_bucket_as_a_queue_one_goes_each_t_in_order_what_overflows_is_refused: "a leaky bucket as a queue: one goes each T, in order, what overflows is refused",
    a_queue_spaces_departures_by_what_they_cost: "a queue spaces departures by what they cost",
    charge_takes_what_does_not_fit_and_refund_gives_it_back: "charge takes what does not fit, and refund gives it back",
    charge_and_refund_of_an_interval_bucket: "charge and refund of an interval bucket",
    debts_saturate_at_thirty_five_years: "debts saturate at thirty-five years",
    debts_of_an_interval_bucket_saturate_too: "debts of an interval bucket saturate too",
    peek_answers_as_take_would_and_stores_nothing: "peek answers as take would, and stores nothing",
    a_cost_of_nothing_always_passes_and_stores_nothing: "a cost of nothing always passes and stores nothing",
    reserve_takes_now_what_passes_later: "reserve takes now what passes later",
    reserve_in_a_queue_waits_for_its_departure: "reserve in a queue waits for its departure",
    reserve_needs_a_machine_that_can_tell_when: "reserve needs a machine that can tell when",
    reset_makes_a_key_as_if_never_used: "reset makes a key as if never used",
    the_greatest_rate_there_is: "the greatest rate there is",
    a_fixed_window_from_its_first_request: "a fixed window from its first request",
    a_fixed_window_on_the_clock_twice_the_limit_passes_around_an_edge: "a fixed window on the clock: twice the limit passes around an edge",
    a_fixed_window_of_milliseconds: "a fixed window of milliseconds",
    a_fixed_window_of_a_calendar_month: "a fixed window of a calendar month",
    a_calendar_day_of_23_hours_and_one_of_25: "a calendar day of 23 hours, and one of 25",
    a_calendar_week_begins_on_monday_a_year_on_the_first_of_january: "a calendar week begins on Monday, a year on the first of January",
    refused_requests_that_do_not_count: "refused requests that do not count",
    refused_requests_that_count: "refused requests that count",
    a_charge_is_repaid_at_the_latest_when_the_window_has_passed: "a charge is repaid at the latest when the window has passed",
    a_refund_belongs_to_the_window_that_is_open: "a refund belongs to the window that is open",
    a_clock_that_steps_back_holds_a_key_at_most_so_much_longer: "a clock that steps back holds a key at most so much longer",
    a_sliding_log_an_event_exactly_one_period_old_is_gone: "a sliding log: an event exactly one period old is gone",
    the_retry_of_a_log_looks_for_enough_whole_events: "the retry of a log looks for enough whole events",
    a_log_whose_refused_requests_count_who_never_lets_up_never_gets_through: "a log whose refused requests count: who never lets up never gets through",
    charges_in_a_log_push_out_what_no_longer_matters: "charges in a log push out what no longer matters",
    a_refund_comes_off_the_newest_events: "a refund comes off the newest events",
    a_sliding_counter_weighs_the_window_before: "a sliding counter weighs the window before",
    a_sliding_counter_looks_into_the_next_window: "a sliding counter looks into the next window",
    a_counter_whose_refused_requests_count: "a counter whose refused requests count",
    a_refund_leaves_the_previous_window_alone: "a refund leaves the previous window alone",
    a_log_after_a_clock_that_stepped_back: "a log after a clock that stepped back",
    several_limits_are_all_or_nothing: "several limits are all or nothing",
    of_equals_the_first_written_binds: "of equals the first written binds",
    never_is_the_greatest_wait: "never is the greatest wait",
    limits_that_count_refused_requests_record_also_what_they_would_allow: "limits that count refused requests record also what they would allow",
    delay_is_the_greatest: "delay is the greatest",
    a_plan_by_the_minute_and_by_the_day: "a plan by the minute and by the day",
    what_reset_answers: "what reset answers",
    a_rule_raised_under_a_live_key_leaves_the_difference_at_once: "a rule raised under a live key leaves the difference at once",
    a_rule_lowered_under_a_live_key_denies_until_it_has_drained: "a rule lowered under a live key denies until it has drained",
    what_is_denied_under_a_new_rule_is_kept_under_it: "what is denied under a new rule is kept under it",
    a_peek_under_a_new_rule_stores_nothing: "a peek under a new rule stores nothing",
    a_log_that_keeps_shows_a_later_rule_what_was_used: "a log that keeps shows a later rule what was used",
    keep_max_bounds_what_is_kept: "keep-max bounds what is kept",
    the_window_keeps_its_start_when_its_alignment_changes: "the window keeps its start when its alignment changes",
    a_counter_of_the_same_period_keeps_both_counts_of_another_its_estimate: "a counter of the same period keeps both counts, of another its estimate",
    an_interval_bucket_carries_what_is_used_and_its_steps: "an interval bucket carries what is used, and its steps",
    from_one_machine_to_another_units_in_use_rounded_up: "from one machine to another: units in use, rounded up",
    each_limit_continues_the_one_that_it_is_like: "each limit continues the one that it is like",
    a_limit_that_is_added_starts_unused_but_a_log_sees_what_logs_saw: "a limit that is added starts unused, but a log sees what logs saw",
    as_many_limits_as_before_pair_up_in_order: "as many limits as before pair up in order",
    a_name_is_not_a_rule: "a name is not a rule",
    thirty_used_stay_thirty_when_the_period_changes: "thirty used stay thirty when the period changes",
    a_calendar_window_ends_at_its_midnight_whoever_opened_it: "a calendar window ends at its midnight, whoever opened it",
}

#[test]
fn keys_of_any_dimension() {
    check_keys(&mut CoreSubject::default());
}
