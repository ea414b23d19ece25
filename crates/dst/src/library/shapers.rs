//! Shapers: queues that release items at the rate of a key.

use std::sync::Arc;

use sluicegate::Shaper;
use sluicegate_core::PreparedPolicy;

use super::limiter::Library;

/// Items that a shaper may have.
const CAPACITY: usize = 64;

impl Library {
    /// Adds items to the shaper of a key.
    pub(crate) fn push(&self, key: &[u8], policy: &PreparedPolicy, count: usize) {
        let mut shapers = self.shapers.lock();
        if !shapers.contains_key(key) {
            let made = Shaper::new(self.limiter.clone(), key, policy, CAPACITY);
            let Ok(shaper) = made.map(Arc::new) else {
                return self.process.checks().violation(format_args!("invalid policy of a shaper"));
            };
            self.release_items(key.to_vec(), Arc::clone(&shaper));
            shapers.insert(key.to_vec(), shaper);
        }
        let Some(shaper) = shapers.get(key) else { return };
        for _ in 0..count {
            // The shaper numbers them by their order.
            let number = self.process.checks().pushed(key);
            if shaper.push(number).is_err() && shaper.len() < CAPACITY {
                self.process.checks().violation(format_args!("a shaper refuses an item"));
            }
        }
    }

    /// Releases items for as long as the process runs.
    fn release_items(&self, key: Vec<u8>, shaper: Arc<Shaper<u64>>) {
        let process = self.process.clone();
        self.process.spawn(async move {
            let mut last = None;
            while let Ok(Some(item)) = shaper.next().await {
                let millis = process.moment().millis;
                let (index, _) = process.numbers();
                process.log().add(format_args!("process {index}: releases item {item}"));
                process.checks().released(&key, millis);
                if last.is_some_and(|last| last >= item) {
                    let what = format_args!("order: item {item} is released after {last:?}");
                    process.checks().violation(what);
                }
                last = Some(item);
            }
        });
    }

    /// Items that have not been released.
    pub(crate) fn unreleased(&self) -> usize {
        if self.process.has_ended() {
            return 0;
        }
        self.shapers.lock().values().map(|shaper| shaper.len()).sum()
    }
}
