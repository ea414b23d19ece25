//! The core as a WebAssembly module, for JavaScript: state in the memory of the instance, the time an argument.
//!
//! An instance serves one limiter. Its host writes keys and texts to the input buffer ([`input`]), calls a function with their
//! lengths, and reads numbers and text from the output buffers. Numbers of more than 32 bits are `f64`: all times are whole microseconds
//! up to 2^53, and therefore exact. Functions that decide return 1 for allowed, 0 for denied,
//! and less for an error, whose text is in the output. Handles are numbers that the
//! host gives back: an unknown one is an error of the host.
//!
//! - `exchange` has the buffers, and the export of functions;
//! - `policies` has the policies, `operations` decodes what is asked;
//! - `table` decides in the memory of the instance;
//! - `waiting` has requests that wait, without their timers;
//! - `remote` has the denial cache and the fallback of a limiter whose store is elsewhere;
//! - `http` has headers, problem documents and the addresses of clients;
//! - `random` gets random bytes from the host.

mod exchange;
mod http;
mod operations;
mod policies;
mod random;
mod remote;
mod table;
mod waiting;

pub use exchange::{input, numbers, text, text_length};
pub use http::{client_network, headers, problem, unavailable_problem};
pub use policies::{explain, free_policy, hold_ttl, policy, policy_text};
pub use remote::{
    begin_query, connect, denied, fall_back, fall_back_all, follow_hold, forget, record,
    reset_remote,
};
pub use table::{apply, apply_all, open, reset, usage};
pub use waiting::{cancel, combine, poll, wait, waiting_operation};
