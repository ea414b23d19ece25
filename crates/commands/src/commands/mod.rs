//! The commands on keys: one file each.

mod cl_throttle;
mod sg_charge;
mod sg_info;
mod sg_mtake;
mod sg_peek;
mod sg_refund;
mod sg_reserve;
mod sg_reset;
mod sg_take;
mod sg_wait;

#[cfg(test)]
mod mistakes;
#[cfg(test)]
mod tests;

pub(crate) use cl_throttle::ClThrottle;
pub(crate) use sg_charge::SgCharge;
pub(crate) use sg_info::SgInfo;
pub(crate) use sg_mtake::SgMtake;
pub(crate) use sg_peek::SgPeek;
pub(crate) use sg_refund::SgRefund;
pub(crate) use sg_reserve::SgReserve;
pub(crate) use sg_reset::SgReset;
pub(crate) use sg_take::SgTake;
pub(crate) use sg_wait::SgWait;
