//! Policies made by calls equal policies made from text, and so do their errors.

use std::time::Duration;

use proptest::prelude::*;
use sluicegate_core::{CalendarUnit, Policy, builder::PolicyBuilder};

/// Parameters of a limit: every algorithm, every option, and values outside of the domains.
#[derive(Clone, Debug)]
struct Parameters {
    algorithm: usize,
    limit: u32,
    period_us: u64,
    unit: CalendarUnit,
    /// `burst`, `capacity` or `keep-max`.
    size: Option<u32>,
    /// `borrow`, or `count=all`.
    flag: bool,
    /// `refill=interval`, or `align=clock`.
    mode: bool,
    zone: Option<&'static str>,
    keep_us: Option<u64>,
}

fn units() -> impl Strategy<Value = u32> {
    prop_oneof![1 => Just(0), 6 => 1..100u32, 2 => any::<u32>()]
}

fn micros() -> impl Strategy<Value = u64> {
    let seconds = 1_000_000;
    prop_oneof![
        1 => 0..1000u64,
        6 => (1..90u64).prop_map(move |count| count * 60 * seconds),
        2 => 1000..40_000_000 * seconds,
    ]
}

fn parameters() -> impl Strategy<Value = Parameters> {
    let units_of_calendar =
        [CalendarUnit::Day, CalendarUnit::Week, CalendarUnit::Month, CalendarUnit::Year];
    let zones = [None, Some("UTC"), Some("Europe/Paris"), Some("Atlantis/Poseidonis")];
    let numbers = (0..9usize, units(), micros(), proptest::option::of(units()));
    let options = (
        prop::sample::select(units_of_calendar.to_vec()),
        any::<bool>(),
        any::<bool>(),
        prop::sample::select(zones.to_vec()),
        proptest::option::of(micros()),
    );
    (numbers, options).prop_map(
        |((algorithm, limit, period_us, size), (unit, flag, mode, zone, keep_us))| Parameters {
            algorithm,
            limit,
            period_us,
            unit,
            size,
            flag,
            mode,
            zone,
            keep_us,
        },
    )
}

/// Calls a method of the builder if there is a value for it.
macro_rules! set {
    ($builder:ident, $($method:ident if $given:expr),+) => {{
        $(let $builder = if $given { $builder.$method() } else { $builder };)+
        $builder
    }};
}

impl Parameters {
    fn builder(&self) -> PolicyBuilder {
        let Self { limit, size, flag, mode, .. } = *self;
        let period = Duration::from_micros(self.period_us);
        match self.algorithm {
            0 => {
                let it = Policy::gcra(limit).per(period);
                let it = size.map_or(it.clone(), |size| it.burst(size));
                set!(it, borrow if flag).into()
            }
            1 => {
                let it = Policy::token_bucket(limit).per(period);
                let it = size.map_or(it.clone(), |size| it.burst(size));
                set!(it, borrow if flag, refill_by_interval if mode).into()
            }
            2 => {
                let it = Policy::leaky_bucket(limit).per(period);
                let it = size.map_or(it.clone(), |size| it.capacity(size));
                set!(it, borrow if flag).into()
            }
            3 => {
                let it = Policy::leaky_queue(limit).per(period);
                size.map_or(it.clone(), |size| it.capacity(size)).into()
            }
            4 => {
                let it = Policy::fixed_window(limit).per(period);
                set!(it, count_all if flag, align_to_clock if mode).into()
            }
            5 => {
                let it = Policy::fixed_window(limit).per_calendar(self.unit);
                let it = self.zone.map_or(it.clone(), |zone| it.time_zone(zone));
                set!(it, count_all if flag).into()
            }
            6 => {
                let it = Policy::sliding_log(limit).per(period);
                let it =
                    self.keep_us.map_or(it.clone(), |keep| it.keep(Duration::from_micros(keep)));
                let it = size.map_or(it.clone(), |size| it.keep_max(size));
                set!(it, count_all if flag).into()
            }
            7 => {
                let it = Policy::sliding_counter(limit).per(period);
                set!(it, count_all if flag).into()
            }
            _ => Policy::concurrency(limit).per(period).into(),
        }
    }

    fn text(&self) -> String {
        let Self { limit, period_us, size, flag, mode, .. } = *self;
        let size = |name: &str| size.map_or(String::new(), |size| format!(":{name}={size}"));
        let flag = |text| if flag { text } else { "" };
        let mode = |text| if mode { text } else { "" };
        let (borrow, count_all) = (flag(":borrow"), flag(":count=all"));
        let rate = format!("{limit}/{period_us}us");
        match self.algorithm {
            0 => format!("gcra:{rate}{borrow}{}", size("burst")),
            1 => {
                format!("token-bucket:{rate}{borrow}{}{}", size("burst"), mode(":refill=interval"))
            }
            2 => format!("leaky-bucket:{rate}{borrow}{}", size("capacity")),
            3 => format!("leaky-queue:{rate}{}", size("capacity")),
            4 => format!("fixed-window:{rate}{count_all}{}", mode(":align=clock")),
            5 => {
                let zone = self.zone.map_or(String::new(), |zone| format!(":tz={zone}"));
                format!("fixed-window:{limit}/{}{count_all}{zone}", self.unit)
            }
            6 => {
                let keep = self.keep_us.map_or(String::new(), |keep| format!(":keep={keep}us"));
                format!("sliding-log:{rate}{count_all}{keep}{}", size("keep-max"))
            }
            7 => format!("sliding-counter:{rate}{count_all}"),
            _ => format!("concurrency:{rate}"),
        }
    }
}

proptest! {
    #![proptest_config(crate::cases(2000))]

    #[test]
    fn builder_any_limits_equal_their_text(limits in prop::collection::vec(parameters(), 1..4)) {
        let mut builders = limits.iter().map(Parameters::builder);
        let first = builders.next().expect("one at least");
        let built = builders.fold(first, PolicyBuilder::and).build();
        let text = limits.iter().map(Parameters::text).collect::<Vec<_>>().join(",");
        match (built, text.parse::<Policy>()) {
            (Ok(built), Ok(parsed)) => {
                prop_assert_eq!(&built, &parsed);
                prop_assert_eq!(built.to_string().parse::<Policy>().unwrap(), built);
            }
            (Err(built), Err(parsed)) => {
                prop_assert_eq!(built.to_string(), parsed.to_string());
                prop_assert_eq!(built.limit(), parsed.limit());
            }
            (built, parsed) => prop_assert!(false, "{text}: {built:?}, {parsed:?}"),
        }
    }
}

#[test]
fn builder_more_than_eight_limits_is_an_error() {
    let limit = || Policy::gcra(1).per(Duration::from_secs(1));
    let nine = (0..8).fold(PolicyBuilder::from(limit()), |all, _| all.and(limit()));
    let error = nine.build().unwrap_err().to_string();
    let text = ["gcra:1/1s"; 9].join(",");
    assert_eq!(error, text.parse::<Policy>().unwrap_err().to_string());
}
