//! Exact numbers: every time, count and rate of the oracle is a rational.
//!
//! Most have a numerator and a denominator of at most 128 bits, and are computed with those; the others with integers of
//! any size. Both give the same numbers.

use std::{
    cmp::Ordering,
    fmt,
    iter::Sum,
    ops::{Add, Div, Mul, Sub},
};

use num_rational::BigRational;
use num_traits::{One, ToPrimitive, Zero};

/// A time, count or rate, exactly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Q {
    /// A numerator and a denominator, in lowest terms; the denominator is positive.
    Small(i128, i128),
    /// A number that is not small.
    Big(Box<BigRational>),
}

impl Q {
    /// A fraction, of which the denominator is not zero.
    fn fraction(numerator: i128, denominator: i128) -> Option<Self> {
        if denominator == 1 {
            return Some(Self::Small(numerator, 1));
        }
        let divisor = gcd(numerator.unsigned_abs(), denominator.unsigned_abs());
        let divisor = i128::try_from(divisor).ok()?;
        let (numerator, denominator) = (numerator / divisor, denominator / divisor);
        if denominator < 0 {
            Some(Self::Small(numerator.checked_neg()?, denominator.checked_neg()?))
        } else {
            Some(Self::Small(numerator, denominator))
        }
    }

    fn to_big(&self) -> BigRational {
        match self {
            Self::Small(numerator, denominator) => {
                BigRational::new((*numerator).into(), (*denominator).into())
            }
            Self::Big(big) => (**big).clone(),
        }
    }

    /// The result of an operation: on small numbers, unless they overflow, and otherwise on big ones.
    fn compute(
        &self,
        other: &Self,
        small: impl FnOnce((i128, i128), (i128, i128)) -> Option<Self>,
        big: impl FnOnce(BigRational, BigRational) -> BigRational,
    ) -> Self {
        if let (&Self::Small(a, b), &Self::Small(c, d)) = (self, other)
            && let Some(result) = small((a, b), (c, d))
        {
            return result;
        }
        big(self.to_big(), other.to_big()).into()
    }

    /// The greatest integer that is no greater.
    pub(super) fn floor(&self) -> Self {
        match self {
            Self::Small(numerator, denominator) => {
                Self::Small(numerator.div_euclid(*denominator), 1)
            }
            Self::Big(big) => big.floor().into(),
        }
    }

    /// The least integer that is no less.
    pub(super) fn ceil(&self) -> Self {
        match self {
            Self::Small(_, 1) => self.clone(),
            Self::Small(..) => self.floor() + Self::one(),
            Self::Big(big) => big.ceil().into(),
        }
    }

    /// The numerator in lowest terms.
    pub(super) fn numerator(&self) -> Self {
        match self {
            Self::Small(numerator, _) => Self::Small(*numerator, 1),
            Self::Big(big) => BigRational::from_integer(big.numer().clone()).into(),
        }
    }

    /// The value, if it is an integer of 64 bits.
    pub(super) fn to_i64(&self) -> Option<i64> {
        match self {
            Self::Small(integer, 1) => i64::try_from(*integer).ok(),
            Self::Small(..) => None,
            Self::Big(big) => big.is_integer().then(|| big.to_integer().to_i64())?,
        }
    }
}

impl From<BigRational> for Q {
    fn from(big: BigRational) -> Self {
        match (big.numer().to_i128(), big.denom().to_i128()) {
            (Some(numerator), Some(denominator)) => Self::Small(numerator, denominator),
            _ => Self::Big(Box::new(big)),
        }
    }
}

/// The greatest common divisor, by Euclid.
fn gcd(mut a: u128, mut b: u128) -> u128 {
    loop {
        // Division is much faster on 64 bits.
        if let (Ok(mut a), Ok(mut b)) = (u64::try_from(a), u64::try_from(b)) {
            while b != 0 {
                (a, b) = (b, a % b);
            }
            return a.into();
        }
        if b == 0 {
            return a;
        }
        (a, b) = (b, a % b);
    }
}

macro_rules! operation {
    ($trait:ident, $name:ident, $small:expr) => {
        impl $trait<&Q> for &Q {
            type Output = Q;

            fn $name(self, other: &Q) -> Q {
                self.compute(other, $small, |a, b| $trait::$name(a, b))
            }
        }

        impl $trait<Q> for &Q {
            type Output = Q;

            fn $name(self, other: Q) -> Q {
                $trait::$name(self, &other)
            }
        }

        impl $trait<&Q> for Q {
            type Output = Q;

            fn $name(self, other: &Q) -> Q {
                $trait::$name(&self, other)
            }
        }

        impl $trait<Q> for Q {
            type Output = Q;

            fn $name(self, other: Q) -> Q {
                $trait::$name(&self, &other)
            }
        }
    };
}

operation!(Add, add, |(a, b), (c, d)| {
    if b == d {
        return Q::fraction(a.checked_add(c)?, b);
    }
    Q::fraction(a.checked_mul(d)?.checked_add(c.checked_mul(b)?)?, b.checked_mul(d)?)
});
operation!(Sub, sub, |(a, b), (c, d)| {
    if b == d {
        return Q::fraction(a.checked_sub(c)?, b);
    }
    Q::fraction(a.checked_mul(d)?.checked_sub(c.checked_mul(b)?)?, b.checked_mul(d)?)
});
operation!(Mul, mul, |(a, b), (c, d)| Q::fraction(a.checked_mul(c)?, b.checked_mul(d)?));
operation!(Div, div, |(a, b), (c, d)| {
    let (numerator, denominator) = (a.checked_mul(d)?, b.checked_mul(c)?);
    (denominator != 0).then(|| Q::fraction(numerator, denominator))?
});

impl Ord for Q {
    fn cmp(&self, other: &Self) -> Ordering {
        if let (&Self::Small(a, b), &Self::Small(c, d)) = (self, other) {
            if b == d {
                return a.cmp(&c);
            }
            if let (Some(left), Some(right)) = (a.checked_mul(d), c.checked_mul(b)) {
                return left.cmp(&right);
            }
        }
        self.to_big().cmp(&other.to_big())
    }
}

impl PartialOrd for Q {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<'a> Sum<&'a Self> for Q {
    fn sum<I: Iterator<Item = &'a Self>>(numbers: I) -> Self {
        numbers.fold(Self::zero(), |sum, number| sum + number)
    }
}

impl fmt::Display for Q {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_big().fmt(formatter)
    }
}

impl Zero for Q {
    fn zero() -> Self {
        Self::Small(0, 1)
    }

    fn is_zero(&self) -> bool {
        matches!(self, Self::Small(0, _))
    }
}

impl One for Q {
    fn one() -> Self {
        Self::Small(1, 1)
    }
}

/// An integer, as a rational.
pub(super) fn q(integer: impl Into<i128>) -> Q {
    Q::Small(integer.into(), 1)
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
    let Q::Small(integer, 1) = value else { panic!("answers are rounded: {value:?}") };
    u64::try_from(*integer).expect("a count or span is not negative and fits 64 bits")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Numbers of all sizes, as one of this file and as one of the library.
    fn number() -> impl Strategy<Value = (Q, BigRational)> {
        let part = (any::<i128>(), 0..128_u32).prop_map(|(bits, shift)| bits >> shift);
        (part.clone(), part.prop_filter("no denominator", |it| *it != 0)).prop_map(|(a, b)| {
            let big = BigRational::new(a.into(), b.into());
            (big.clone().into(), big)
        })
    }

    proptest! {
        #[test]
        fn small_numbers_equal_big_ones((a, big_a) in number(), (b, big_b) in number()) {
            prop_assert_eq!(&a + &b, Q::from(&big_a + &big_b));
            prop_assert_eq!(&a - &b, Q::from(&big_a - &big_b));
            prop_assert_eq!(&a * &b, Q::from(&big_a * &big_b));
            if !b.is_zero() {
                prop_assert_eq!(&a / &b, Q::from(&big_a / &big_b));
            }
            prop_assert_eq!(a.cmp(&b), big_a.cmp(&big_b));
            prop_assert_eq!(a.floor(), Q::from(big_a.floor()));
            prop_assert_eq!(a.ceil(), Q::from(big_a.ceil()));
            prop_assert_eq!(a.numerator(), Q::from(BigRational::from_integer(big_a.numer().clone())));
            prop_assert_eq!(a.is_zero(), big_a.is_zero());
        }
    }
}
