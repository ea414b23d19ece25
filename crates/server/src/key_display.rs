//! How keys are shown to operators.

use sha2::{Digest, Sha256};
use sluicegate_commands::quote;

use crate::DashboardMode;

/// Shows keys in full, as masks, or not at all, by the setting of the dashboard.
#[derive(Debug)]
pub(crate) struct KeyDisplay {
    pub(crate) mode: DashboardMode,
    /// Random bytes that are hashed with a key to make its mask.
    salt: [u8; 16],
}

impl KeyDisplay {
    pub(crate) fn new(mode: DashboardMode) -> Self {
        let random = || ahash::RandomState::new().hash_one(0_u8).to_ne_bytes();
        let mut salt = [0; 16];
        salt[..8].copy_from_slice(&random());
        salt[8..].copy_from_slice(&random());
        Self { mode, salt }
    }

    /// The mask of `key`: the same one until a restart.
    pub(crate) fn mask(&self, key: &[u8]) -> String {
        let digest = Sha256::new().chain_update(self.salt).chain_update(key).finalize();
        let tag = digest.iter().take(5).map(|byte| format!("{byte:02x}"));
        format!("#{}", tag.collect::<String>())
    }

    /// The mask of `key` for spans and logs; `None` if keys are not shown at all.
    pub(crate) fn tag(&self, key: &[u8]) -> Option<String> {
        match self.mode {
            DashboardMode::On | DashboardMode::Masked => Some(self.mask(key)),
            DashboardMode::NoKeys | DashboardMode::Off => None,
        }
    }

    /// `key` as logs and lists of this server show it.
    pub(crate) fn show(&self, key: &[u8]) -> String {
        match self.mode {
            DashboardMode::On => quote(key),
            DashboardMode::Masked => self.mask(key),
            DashboardMode::NoKeys | DashboardMode::Off => "(hidden)".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mask_tells_keys_apart_and_changes_with_a_restart() {
        let display = KeyDisplay::new(DashboardMode::Masked);
        assert_eq!(display.mask(b"a"), display.mask(b"a"));
        assert_ne!(display.mask(b"a"), display.mask(b"b"));
        assert_ne!(display.mask(b"a"), KeyDisplay::new(DashboardMode::Masked).mask(b"a"));
        assert_eq!(display.mask(b"a").len(), 11);
    }
}
