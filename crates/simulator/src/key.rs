//! A key in the table: short ones in place, so that to compare one costs no jump in memory.

/// Bytes that are kept in place: it and what is kept of a key fill one line of a cache.
const INLINE: usize = 30;

/// The bytes of a key.
#[derive(Debug)]
pub(crate) enum Key {
    Short { length: u8, bytes: [u8; INLINE] },
    Long(Box<[u8]>),
}

impl From<&[u8]> for Key {
    fn from(key: &[u8]) -> Self {
        let mut bytes = [0; INLINE];
        match (bytes.get_mut(..key.len()), u8::try_from(key.len())) {
            (Some(to), Ok(length)) => {
                to.copy_from_slice(key);
                Self::Short { length, bytes }
            }
            _ => Self::Long(key.into()),
        }
    }
}

impl Key {
    /// Whether it is as long as `key`, or too long to tell at a glance.
    pub(crate) fn may_be(&self, key: &[u8]) -> bool {
        match self {
            Self::Short { length, .. } => usize::from(*length) == key.len(),
            Self::Long(_) => true,
        }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Short { length, bytes } => &bytes[..usize::from(*length)],
            Self::Long(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Key;

    #[test]
    fn keys_of_any_length_are_kept() {
        for length in [0, 1, 29, 30, 31, 255, 256, 65_537] {
            let key: Vec<u8> = (0..=u8::MAX).cycle().take(length).collect();
            assert_eq!(Key::from(&*key).as_slice(), key);
        }
        assert_eq!(size_of::<Key>(), 32);
    }
}
