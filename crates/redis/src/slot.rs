//! Slots of a Redis Cluster: CRC-16/XMODEM of the key, or of the part between its first `{` and the next `}`.

use crc16::{State, XMODEM};

/// Number of slots of a cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// The slot of `key`.
pub(crate) fn slot(key: &[u8]) -> u16 {
    State::<XMODEM>::calculate(tag(key)) % SLOTS
}

/// The part of the key that is hashed.
fn tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|&byte| byte == b'{') else { return key };
    let inner = &key[open + 1..];
    match inner.iter().position(|&byte| byte == b'}') {
        Some(close @ 1..) => &inner[..close],
        // `{}` and a brace that is not closed are bytes like others.
        _ => key,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_hashes_only_the_tag() {
        // Replies of `CLUSTER KEYSLOT` of Redis 7.0.
        for (key, expected) in [
            (&b"foo"[..], 12182),
            (b"", 0),
            (b"user:{42}:take", 8000),
            (b"{}x", 10595),
            (b"{x", 11068),
        ] {
            assert_eq!(slot(key), expected, "{}", key.escape_ascii());
        }
        assert_eq!(slot(b"{user1}.a"), slot(b"{user1}.b"));
        assert_eq!(slot(b"a{b}{c}"), slot(b"b"));
        assert_ne!(slot(b"{}a"), slot(b"{}b"));
    }
}
