//! Exact numbers: every time, count and rate of the oracle is a rational.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{ToPrimitive, Zero};

/// A time, count or rate, exactly.
pub(super) type Q = BigRational;

/// An integer, as a rational.
pub(super) fn q(integer: impl Into<BigInt>) -> Q {
    Q::from_integer(integer.into())
}

/// Upper bound on the time to drain a debt, in microseconds; also the greatest count.
pub(super) fn ceiling() -> Q {
    q(1_u64 << 50)
}

/// `value`, or zero if it is negative.
pub(super) fn at_least_zero(value: Q) -> Q {
    value.max(Q::zero())
}

/// A count or span of an answer, as an integer.
pub(super) fn whole(value: &Q) -> u64 {
    assert!(value.is_integer(), "answers are rounded");
    value.to_integer().to_u64().expect("a count or span is not negative and fits 64 bits")
}
