//! The commands on keys: one file each.

pub(crate) mod cl_throttle;
pub(crate) mod increx;
pub(crate) mod sg_charge;
pub(crate) mod sg_hold;
pub(crate) mod sg_info;
pub(crate) mod sg_mtake;
pub(crate) mod sg_peek;
pub(crate) mod sg_refund;
pub(crate) mod sg_renew;
pub(crate) mod sg_reserve;
pub(crate) mod sg_reset;
pub(crate) mod sg_settle;
pub(crate) mod sg_take;
pub(crate) mod sg_takeall;
pub(crate) mod sg_wait;

#[cfg(test)]
mod tests;
