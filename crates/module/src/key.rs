//! An open key: its bytes in place, its time to live, and its replication.

use std::{ffi::c_int, ptr::NonNull};

use sluicegate_commands::CommandError;

use crate::{
    api::{self, KeyHandle, api},
    context::{Context, Name},
};

/// A key, until dropped.
#[derive(Debug)]
pub(crate) struct Key<'a> {
    context: Context<'a>,
    name: Name<'a>,
    /// `None` for a missing key that is opened for reading.
    handle: Option<NonNull<KeyHandle>>,
}

impl<'a> Key<'a> {
    /// Opens the key for reading.
    pub(crate) fn to_read(context: Context<'a>, name: Name<'a>) -> Self {
        Self::open(context, name, api::OPEN_READ)
    }

    /// Opens the key for reading and writing.
    #[inline]
    pub(crate) fn to_write(context: Context<'a>, name: Name<'a>) -> Self {
        Self::open(context, name, api::OPEN_READ | api::OPEN_WRITE)
    }

    #[inline]
    fn open(context: Context<'a>, name: Name<'a>, mode: c_int) -> Self {
        // SAFETY: context and name are valid. The handle is closed when this is dropped.
        let handle = unsafe { (api().open_key)(context.raw(), name.raw(), mode) };
        Self { context, name, handle: NonNull::new(handle) }
    }

    pub(crate) const fn name(&self) -> Name<'a> {
        self.name
    }

    pub(crate) const fn context(&self) -> Context<'a> {
        self.context
    }

    /// Its bytes, or `None` if the key does not exist.
    ///
    /// # Errors
    /// [`CommandError::WrongType`] for a key of another type.
    #[inline]
    pub(crate) fn bytes(&self) -> Result<Option<&[u8]>, CommandError> {
        let Some(handle) = self.handle else { return Ok(None) };
        // SAFETY: the handle is open.
        match unsafe { (api().key_type)(handle.as_ptr()) } {
            api::TYPE_EMPTY => Ok(None),
            api::TYPE_STRING => {
                let mut length = 0;
                // SAFETY: the key holds a string, which stays in place until it is changed; that
                // needs `self` alone.
                let bytes = unsafe {
                    let start =
                        (api().string_dma)(handle.as_ptr(), &raw mut length, api::OPEN_READ);
                    std::slice::from_raw_parts(start.cast(), length)
                };
                Ok(Some(bytes))
            }
            _ => Err(CommandError::wrong_type(self.name.bytes())),
        }
    }

    /// Its first `length` bytes, to be changed in place. With `resize` the key is cut or filled with zeros, and created if
    /// it does not exist.
    #[inline]
    pub(crate) fn bytes_mut(&mut self, length: usize, resize: bool) -> &mut [u8] {
        let Some(handle) = self.handle else { return &mut [] };
        let mut found = 0;
        // SAFETY: the handle is open for writing. The returned bytes stay in place until the key is changed
        // otherwise; that needs `self` alone.
        unsafe {
            if resize && (api().string_truncate)(handle.as_ptr(), length) != api::OK {
                return &mut [];
            }
            let mode = api::OPEN_READ | api::OPEN_WRITE;
            let start = (api().string_dma)(handle.as_ptr(), &raw mut found, mode);
            if start.is_null() {
                return &mut [];
            }
            std::slice::from_raw_parts_mut(start.cast(), found)
        }
    }

    /// Creates the key with these bytes.
    pub(crate) fn make(&mut self, bytes: &[u8]) {
        // Valkey stores a short string that is set as a whole within the entry of its key, which takes less memory. The
        // first change in place moves it out.
        if let (Some(embed), Some(handle)) = (api().embed_string, self.handle) {
            let value = self.context.name(bytes);
            // SAFETY: the handle is open for writing; the server copies the string, or shares it.
            unsafe { embed(handle.as_ptr(), value.as_name().raw()) };
            return;
        }
        self.write(bytes, true);
    }

    /// Writes all of its bytes in place; see [`bytes_mut`](Self::bytes_mut).
    #[inline]
    pub(crate) fn write(&mut self, bytes: &[u8], resize: bool) {
        let place = self.bytes_mut(bytes.len(), resize);
        if place.len() == bytes.len() {
            place.copy_from_slice(bytes);
        }
    }

    /// Whether it expires.
    fn ends(&self) -> bool {
        // SAFETY: the handle is open.
        self.handle.is_some_and(|it| unsafe { (api().get_expire)(it.as_ptr()) } != api::NO_EXPIRE)
    }

    /// Sets its expiry, in milliseconds since the Unix epoch.
    #[inline]
    fn set_end(&mut self, millis: i64) {
        if let Some(handle) = self.handle {
            // SAFETY: the handle is open for writing.
            unsafe { (api().set_expire)(handle.as_ptr(), millis) };
        }
    }

    /// Notifies clients that watch the key.
    #[inline]
    fn changed(&self) {
        // SAFETY: context and name are valid.
        unsafe { (api().signal_modified)(self.context.raw(), self.name.raw()) };
    }

    /// Stores `bytes`, until `ends`, and replicates that.
    pub(crate) fn store(&mut self, bytes: &[u8], ends: i64) {
        self.write(bytes, true);
        self.finish(bytes, ends);
    }

    /// Sets the expiry of a key whose bytes have been written, and replicates both.
    #[inline]
    pub(crate) fn finish(&mut self, bytes: &[u8], ends: i64) {
        self.set_end(ends);
        self.context.replicate_set(self.name, bytes, ends);
        self.changed();
    }

    /// Deletes it, and replicates that.
    pub(crate) fn delete(&mut self) {
        let Some(handle) = self.handle else { return };
        // SAFETY: the handle is open for writing.
        unsafe { (api().delete_key)(handle.as_ptr()) };
        self.context.replicate_deletion(self.name);
        self.changed();
    }

    /// Sets an expiry if the key has lost it, and replicates that.
    pub(crate) fn repair_ttl(&mut self, ends: i64) {
        if !self.ends() {
            self.expire(ends);
        }
    }

    /// Sets its expiry, and replicates that.
    pub(crate) fn expire(&mut self, ends: i64) {
        self.set_end(ends);
        self.context.replicate_expiry(self.name, ends);
        self.changed();
    }
}

impl Drop for Key<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(handle) = self.handle {
            // SAFETY: it is open, and this is its end.
            unsafe { (api().close_key)(handle.as_ptr()) };
        }
    }
}
