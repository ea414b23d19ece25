//! Escaping of values in keys.

use std::cell::RefCell;

use crate::query::work;

/// Appends `value` to `key`, with every byte escaped that separates parts of a key.
pub(crate) fn escape(value: &[u8], key: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    work::add(value.len());
    let plain = |byte: &u8| PLAIN[usize::from(*byte)];
    let mut rest = value;
    // Most values are plain as a whole.
    while let Some(at) = rest.iter().position(|byte| !plain(byte)) {
        let (front, after) = rest.split_at(at);
        let byte = usize::from(after[0]);
        key.extend_from_slice(front);
        key.extend_from_slice(&[b'%', DIGITS[byte >> 4], DIGITS[byte & 15]]);
        rest = &after[1..];
    }
    key.extend_from_slice(rest);
}

/// Whether a byte needs no escape.
const PLAIN: [bool; 256] = {
    let (mut plain, mut byte) = ([true; 256], 0_u8);
    loop {
        plain[byte as usize] = !matches!(byte, 0..=b' ' | 0x7f | b'%' | b'|' | b'{' | b'}' | b'=');
        if byte == u8::MAX {
            break plain;
        }
        byte += 1;
    }
};

/// Escaped values of one request, because many rules may build keys from the same long value, for each reading
/// of the target.
#[derive(Default)]
pub(crate) struct EscapedValues(RefCell<Vec<EscapedValue>>);

/// The address of a value, and the value escaped.
type EscapedValue = (*const [u8], Box<[u8]>);

impl EscapedValues {
    /// As [`escape`], once for each `value`. The request borrows or owns the values as long as this exists, so that
    /// their addresses identify them.
    pub(crate) fn escape(&self, value: &[u8], key: &mut Vec<u8>) {
        let mut all = self.0.borrow_mut();
        if let Some((_, known)) = all.iter().find(|(it, _)| std::ptr::eq(*it, value)) {
            return key.extend_from_slice(known);
        }
        let start = key.len();
        escape(value, key);
        all.push((value, key[start..].into()));
    }
}
