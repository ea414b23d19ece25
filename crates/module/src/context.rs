//! One call of the server: its arguments, replies, log and replication.
//!
//! A [`Context`] is only created where the server calls the module, and lives as long as that call. Therefore
//! all functions here are safe.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_long},
    marker::PhantomData,
    ptr::null_mut,
    sync::atomic::{AtomicBool, AtomicPtr, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use sluicegate_commands::{IntegersWriter, ReplyWriter};
use sluicegate_core::Timestamp;
use smallvec::SmallVec;

use crate::api::{self, Ctx, Event, OnEvent, OnKey, OnTimer, Text, api};

/// Arguments of a command; most have at most ten.
pub(crate) type Arguments<'a> = SmallVec<[&'a [u8]; 10]>;

/// `PXAT` as a string of the server, created once because every allowed take is replicated with it.
static PXAT: AtomicPtr<Text> = AtomicPtr::new(null_mut());

/// Set while no consumer reads the replication stream.
static NO_CONSUMERS: AtomicBool = AtomicBool::new(false);

/// Whether no replica, append-only file or backlog reads replicated commands.
#[inline]
pub(crate) fn has_no_consumers() -> bool {
    NO_CONSUMERS.load(Ordering::Relaxed)
}

pub(crate) fn set_no_consumers(value: bool) {
    NO_CONSUMERS.store(value, Ordering::Relaxed);
}

/// Creates the string that all calls share, before the first.
pub(crate) fn create_shared_strings() {
    let option = c"PXAT";
    // SAFETY: it copies that number of bytes. Without a context, the string lasts until it is freed.
    let made = unsafe { (api().create_string)(null_mut(), option.as_ptr(), option.count_bytes()) };
    PXAT.store(made, Ordering::Relaxed);
}

/// Frees it, after the last call.
pub(crate) fn free_shared_strings() {
    let made = PXAT.swap(null_mut(), Ordering::Relaxed);
    if !made.is_null() {
        // SAFETY: this object owns it, and this is its end.
        unsafe { (api().free_string)(null_mut(), made) };
    }
}

/// One call of the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context<'a> {
    raw: *mut Ctx,
    /// In a command, while replication has no consumers.
    unreplicated: bool,
    call: PhantomData<&'a Ctx>,
}

/// A string of the server that names a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name<'a> {
    raw: *mut Text,
    lifetime: PhantomData<&'a Text>,
}

/// A string of the server that the module frees.
#[derive(Debug)]
pub(crate) struct Owned<'a> {
    name: Name<'a>,
    context: Context<'a>,
}

impl<'a> Context<'a> {
    /// # Safety
    /// `raw` must be a context that the server passed, and valid for `'a`.
    pub(crate) const unsafe fn new(raw: *mut Ctx) -> Self {
        Self { raw, unreplicated: false, call: PhantomData }
    }

    /// The context of a command.
    ///
    /// # Safety
    /// As for [`new`](Self::new), and the server must run a command of the module.
    #[inline]
    pub(crate) unsafe fn of_command(raw: *mut Ctx) -> Self {
        Self { raw, unreplicated: has_no_consumers(), call: PhantomData }
    }

    pub(crate) const fn raw(self) -> *mut Ctx {
        self.raw
    }

    /// The time: that of the command, if the server provides it, so that a script or a transaction has one time.
    #[inline]
    pub(crate) fn now(self) -> Timestamp {
        let micros = match api().cached_microseconds {
            // SAFETY: it takes nothing.
            Some(cached) => u64::try_from(unsafe { cached() }).unwrap_or(0),
            None => now_us(),
        };
        Timestamp::saturating_from_micros(micros)
    }

    /// Bits of [`api`], as `FLAG_LUA`.
    pub(crate) fn flags(self) -> c_int {
        // SAFETY: the context is valid.
        unsafe { (api().context_flags)(self.raw) }
    }

    /// Whether the server must not write now: clients are paused (`CLIENT PAUSE`), it hands over to a replica, or stops. A write
    /// outside of a command aborts the server then.
    pub(crate) fn is_paused(self) -> bool {
        // SAFETY: the function has no precondition.
        unsafe { (api().avoid_replica_traffic)() != 0 }
    }

    /// Whether the server calls a command only to learn which of its arguments are keys.
    pub(crate) fn asks_for_keys(self) -> bool {
        // SAFETY: the context is valid.
        unsafe { (api().asks_for_keys)(self.raw) != 0 }
    }

    /// Reports that the argument at `index` is a key.
    pub(crate) fn report_key(self, index: usize) {
        // SAFETY: the context is valid.
        unsafe { (api().key_at)(self.raw, c_int::try_from(index).unwrap_or(0)) };
    }

    /// Whether this node serves the slot of the key. The server checks that for commands, but the slot may move
    /// while a client waits.
    pub(crate) fn serves(self, name: Name<'_>) -> bool {
        if self.flags() & api::FLAG_CLUSTER == 0 {
            return true;
        }
        // SAFETY: the arguments match the format: a string of the server. On a Cluster a call with a key of another
        // node gives no reply; any other reply is the caller's to free.
        unsafe {
            let reply = (api().call)(self.raw, c"EXISTS".as_ptr(), c"s".as_ptr(), name.raw);
            if !reply.is_null() {
                (api().free_call_reply)(reply);
            }
            !reply.is_null()
        }
    }

    pub(crate) fn database(self) -> c_int {
        // SAFETY: the context is valid.
        unsafe { (api().selected_db)(self.raw) }
    }

    pub(crate) fn select(self, database: c_int) {
        // SAFETY: the context is valid. The server rejects a database that does not exist.
        unsafe { (api().select_db)(self.raw, database) };
    }

    /// A line in the server's log: `notice` or `warning`.
    pub(crate) fn log(self, level: &CStr, line: &str) {
        let line = text(line);
        // SAFETY: the format takes one string.
        unsafe { (api().log)(self.raw, level.as_ptr(), c"%s".as_ptr(), line.as_ptr()) };
    }

    /// A string that names a key.
    pub(crate) fn name(self, bytes: &[u8]) -> Owned<'a> {
        // SAFETY: it copies that number of bytes.
        let raw = unsafe { (api().create_string)(self.raw, bytes.as_ptr().cast(), bytes.len()) };
        Owned { name: Name { raw, lifetime: PhantomData }, context: self }
    }

    /// Whether replication has no consumers. If so, only counts the change, for the save points of the server.
    #[inline]
    fn is_unreplicated(self) -> bool {
        if self.unreplicated {
            // SAFETY: the context is that of a command. Without consumers the server only counts a change.
            unsafe { (api().replicate_verbatim)(self.raw) };
        }
        self.unreplicated
    }

    /// Replicates `SET name bytes PXAT ends`.
    #[inline]
    pub(crate) fn replicate_set(self, name: Name<'_>, bytes: &[u8], ends: i64) {
        if self.is_unreplicated() {
            return;
        }
        let start = bytes.as_ptr().cast::<c_char>();
        // SAFETY: the arguments match the format: a string of the server, a buffer and its length, a string of the
        // server, which was made on loading, and a number.
        unsafe {
            (api().replicate)(
                self.raw,
                c"SET".as_ptr(),
                c"sbsl".as_ptr(),
                name.raw,
                start,
                bytes.len(),
                PXAT.load(Ordering::Relaxed),
                ends,
            );
        }
    }

    /// Replicates `PEXPIREAT name ends`.
    pub(crate) fn replicate_expiry(self, name: Name<'_>, ends: i64) {
        if self.is_unreplicated() {
            return;
        }
        // SAFETY: the arguments match the format: a string of the server, and a number.
        unsafe {
            (api().replicate)(self.raw, c"PEXPIREAT".as_ptr(), c"sl".as_ptr(), name.raw, ends);
        }
    }

    /// Replicates `SETRANGE name offset bytes`.
    pub(crate) fn replicate_range(self, name: Name<'_>, offset: usize, bytes: &[u8]) {
        if self.is_unreplicated() {
            return;
        }
        let start = bytes.as_ptr().cast::<c_char>();
        let offset = i64::try_from(offset).unwrap_or(i64::MAX);
        // SAFETY: the arguments match the format: a string of the server, a number, a buffer and its length.
        unsafe {
            (api().replicate)(
                self.raw,
                c"SETRANGE".as_ptr(),
                c"slb".as_ptr(),
                name.raw,
                offset,
                start,
                bytes.len(),
            );
        }
    }

    /// Replicates `DEL name`.
    pub(crate) fn replicate_deletion(self, name: Name<'_>) {
        if self.is_unreplicated() {
            return;
        }
        // SAFETY: the arguments match the format: a string of the server.
        unsafe { (api().replicate)(self.raw, c"DEL".as_ptr(), c"s".as_ptr(), name.raw) };
    }

    /// The numbers in these fields of a section of `INFO`; `None` if a field is missing.
    pub(crate) fn info_numbers<const N: usize>(
        self,
        section: &CStr,
        fields: [&CStr; N],
    ) -> Option<[u64; N]> {
        let mut missing = false;
        // SAFETY: context and names are valid; the info is freed once, and not used after that.
        let numbers = unsafe {
            let info = (api().server_info)(self.raw, section.as_ptr());
            let numbers = fields.map(|field| {
                let mut error = api::OK;
                let number = (api().server_info_number)(info, field.as_ptr(), &raw mut error);
                missing |= error != api::OK;
                number
            });
            (api().free_server_info)(self.raw, info);
            numbers
        };
        (!missing).then_some(numbers)
    }

    /// Publishes a keyspace event: `name` was denied.
    pub(crate) fn notify_denial(self, name: Name<'_>) {
        let event = c"sluicegate.denied".as_ptr();
        // SAFETY: context and string are valid.
        unsafe { (api().notify)(self.raw, api::NOTIFY_MODULE, event, name.raw) };
    }

    pub(crate) fn reply_error(self, error: &str) {
        let error = text(error);
        // SAFETY: it copies the string.
        unsafe { (api().reply_error)(self.raw, error.as_ptr()) };
    }

    /// Calls `run` with `data` after `millis` milliseconds. Returns the number of the timer.
    pub(crate) fn timer<T>(self, millis: i64, run: OnTimer, data: *mut T) -> u64 {
        // SAFETY: the context is valid; `run` interprets `data`.
        unsafe { (api().create_timer)(self.raw, millis, run, data.cast()) }
    }

    /// Stops a timer of [`timer`](Self::timer).
    pub(crate) fn stop_timer(self, timer: u64) {
        // SAFETY: the server rejects a number that no timer has.
        unsafe { (api().stop_timer)(self.raw, timer, std::ptr::null_mut()) };
    }

    pub(crate) fn subscribe(self, event: Event, run: OnEvent) {
        // SAFETY: the server rejects an event that it does not have.
        unsafe { (api().subscribe_event)(self.raw, event, run) };
    }

    pub(crate) fn subscribe_keys(self, kinds: c_int, run: OnKey) {
        // SAFETY: the context is valid.
        unsafe { (api().subscribe_keys)(self.raw, kinds, run) };
    }
}

impl IntegersWriter for Context<'_> {
    #[inline]
    fn integers<const N: usize>(&mut self, integers: &[i64; N]) {
        self.array(N);
        for &integer in integers {
            self.integer(integer);
        }
    }
}

impl ReplyWriter for Context<'_> {
    #[inline]
    fn integer(&mut self, value: i64) {
        // SAFETY: the context is valid.
        unsafe { (api().reply_integer)(self.raw, value) };
    }

    fn string(&mut self, bytes: &[u8]) {
        // SAFETY: it copies that number of bytes.
        unsafe { (api().reply_bytes)(self.raw, bytes.as_ptr().cast(), bytes.len()) };
    }

    fn null(&mut self) {
        // SAFETY: the context is valid.
        unsafe { (api().reply_null)(self.raw) };
    }

    #[inline]
    fn array(&mut self, length: usize) {
        // SAFETY: the context is valid.
        unsafe { (api().reply_array)(self.raw, long(length)) };
    }

    fn map(&mut self, length: usize) {
        // SAFETY: the context is valid.
        unsafe { (api().reply_map)(self.raw, long(length)) };
    }

    fn error(&mut self, text: &str) {
        self.reply_error(text);
    }
}

impl<'a> Name<'a> {
    /// # Safety
    /// `raw` must be a string of the server, valid for `'a`.
    pub(crate) const unsafe fn new(raw: *mut Text) -> Self {
        Self { raw, lifetime: PhantomData }
    }

    pub(crate) const fn raw(self) -> *mut Text {
        self.raw
    }

    #[inline]
    pub(crate) fn bytes(self) -> &'a [u8] {
        let mut length = 0;
        // SAFETY: the string is valid, and has as many bytes as its length says.
        unsafe {
            let start = (api().string_bytes)(self.raw, &raw mut length);
            std::slice::from_raw_parts(start.cast(), length)
        }
    }
}

impl<'a> Owned<'a> {
    pub(crate) const fn as_name(&self) -> Name<'_> {
        Name { raw: self.name.raw, lifetime: PhantomData }
    }
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        // SAFETY: this object owns it, and this is its end.
        unsafe { (api().free_string)(self.context.raw, self.name.raw) };
    }
}

/// `text` as a C string: up to the first zero byte.
pub(crate) fn text(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text[..end]).unwrap_or_default()
}

fn long(length: usize) -> c_long {
    c_long::try_from(length).unwrap_or(c_long::MAX)
}

// The system's clock, for servers that give modules no microseconds. No other file reads it.

/// Microseconds since the Unix epoch; 0 before it.
#[expect(clippy::disallowed_methods, reason = "this is the file that reads the clock")]
fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    sluicegate_core::as_micros(since)
}
