//! Bytes of arguments in error texts.

/// Bytes of an argument that an error quotes.
const MAX_QUOTED: usize = 40;

/// `bytes` as an error quotes them: printable ASCII, cut after 40 bytes.
///
/// ```
/// assert_eq!(sluicegate_commands::quote(b"it's\r\n\xff"), r"it's\r\n\xff");
/// assert_eq!(sluicegate_commands::quote(&[b'x'; 41]), "x".repeat(40) + "...");
/// ```
#[must_use]
pub fn quote(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in &bytes[..bytes.len().min(MAX_QUOTED)] {
        match byte {
            b'\'' | b'"' => text.push(char::from(*byte)),
            other => text.extend(other.escape_ascii().map(char::from)),
        }
    }
    if bytes.len() > MAX_QUOTED {
        text.push_str("...");
    }
    text
}
