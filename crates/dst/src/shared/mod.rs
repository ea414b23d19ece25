//! Processes that share a server or a cluster: production code of the store and of the library.

mod library;
mod plan;
mod process;
mod world;

#[cfg(test)]
pub(crate) use self::plan::Action;
pub(crate) use self::plan::Shared;
