//! The dashboard: its answers, and its page in a real browser.

mod answers;
mod browser;
mod history;
mod operator;
mod other_origins;
mod outage;
mod page;
mod pictures;
mod rules;
mod viewers;

pub(crate) use viewers::Viewer;
