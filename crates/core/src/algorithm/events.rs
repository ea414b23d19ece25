//! The events of a log, oldest first. Copies of a long log share events.
//!
//! A log may hold a million events, and a policy of eight logs may copy it with each request. Therefore a long log is
//! [shared](Events::share) before it is copied: its events move to parts that no longer change, and each copy records
//! which of them are its own. Later events, and events that change, are in each copy alone, after the shared parts. A
//! log that was never copied is one queue.

use std::{collections::VecDeque, ops::ControlFlow, sync::Arc};

/// Number of events up to which a log is copied whole, and which are not worth a part.
const SHORT: usize = if cfg!(test) { 2 } else { 2048 };

/// An event of a log.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoredEvent {
    pub(super) time: u64,
    /// The running total up to and including this event.
    pub(super) total: u64,
}

/// Events in the order of their times and totals.
#[derive(Clone, Debug)]
pub(super) enum Events {
    Own(VecDeque<StoredEvent>),
    Shared(Box<Shared>),
}

/// Every key of a log has one of these: sharing must not make it larger.
const _: () = assert!(size_of::<Events>() == size_of::<VecDeque<StoredEvent>>());

#[derive(Clone, Debug)]
pub(super) struct Shared {
    /// None is empty.
    parts: VecDeque<EventRange>,
    /// The events after the shared ones.
    own: VecDeque<StoredEvent>,
}

/// Events from `start` to `end` of a queue that other logs may share.
#[derive(Clone, Debug)]
struct EventRange {
    events: Arc<VecDeque<StoredEvent>>,
    start: usize,
    end: usize,
}

impl Default for Events {
    fn default() -> Self {
        Self::Own(VecDeque::new())
    }
}

impl EventRange {
    const fn len(&self) -> usize {
        self.end - self.start
    }

    fn iter(&self) -> impl DoubleEndedIterator<Item = &StoredEvent> {
        self.events.range(self.start..self.end)
    }

    fn get(&self, index: usize) -> Option<&StoredEvent> {
        self.events.get(self.start + index)
    }

    fn partition_point(&self, is_before: impl Fn(&StoredEvent) -> bool) -> usize {
        let (mut low, mut high) = (self.start, self.end);
        while low < high {
            let middle = low.midpoint(high);
            if is_before(&self.events[middle]) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low - self.start
    }
}

impl Events {
    /// Shares the events of a long log with all later copies, which then cost little, whatever the length.
    pub(super) fn share(&mut self) {
        match self {
            Self::Own(own) if own.len() > SHORT => {
                let own = std::mem::take(own);
                let mut shared = Shared { parts: VecDeque::new(), own };
                shared.close();
                *self = Self::Shared(Box::new(shared));
            }
            Self::Shared(shared) if shared.own.len() > SHORT => shared.close(),
            Self::Own(_) | Self::Shared(_) => {}
        }
    }

    /// A copy with the spare capacity of a short log: it takes no more memory to push to it than to the log.
    pub(super) fn copy(&self) -> Self {
        let copy = |own: &VecDeque<StoredEvent>| {
            let mut copy = VecDeque::with_capacity(own.capacity().min(2 * SHORT));
            copy.extend(own);
            copy
        };
        match self {
            Self::Own(own) => Self::Own(copy(own)),
            Self::Shared(shared) => Self::Shared(Box::new(Shared {
                parts: shared.parts.clone(),
                own: copy(&shared.own),
            })),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Own(own) => own.len(),
            Self::Shared(shared) => shared.before_own() + shared.own.len(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Own(own) => own.is_empty(),
            Self::Shared(shared) => shared.parts.is_empty() && shared.own.is_empty(),
        }
    }

    pub(super) fn front(&self) -> Option<&StoredEvent> {
        self.get(0)
    }

    pub(super) fn back(&self) -> Option<&StoredEvent> {
        match self {
            Self::Own(own) => own.back(),
            Self::Shared(shared) => shared.back(),
        }
    }

    pub(super) fn get(&self, index: usize) -> Option<&StoredEvent> {
        match self {
            Self::Own(own) => own.get(index),
            Self::Shared(shared) => shared.get(index),
        }
    }

    /// The number of first events for which `is_before` is true; it must be false for all after them.
    pub(super) fn partition_point(&self, is_before: impl Fn(&StoredEvent) -> bool) -> usize {
        match self {
            Self::Own(own) => own.partition_point(is_before),
            Self::Shared(shared) => shared.partition_point(is_before),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &StoredEvent> {
        let (parts, own) = match self {
            Self::Own(own) => (None, own),
            Self::Shared(shared) => (Some(&shared.parts), &shared.own),
        };
        parts.into_iter().flatten().flat_map(EventRange::iter).chain(own)
    }

    pub(super) fn push(&mut self, event: StoredEvent) {
        match self {
            Self::Own(own) => own.push_back(event),
            Self::Shared(shared) => shared.own.push_back(event),
        }
    }

    /// Frees the capacity beyond its own events.
    pub(super) fn shrink(&mut self) {
        match self {
            Self::Own(own) => own.shrink_to_fit(),
            Self::Shared(shared) => shared.own.shrink_to_fit(),
        }
    }

    /// Drops the `count` oldest.
    pub(super) fn drop_first(&mut self, count: usize) {
        match self {
            Self::Own(own) => drop(own.drain(..count)),
            Self::Shared(shared) => {
                shared.drop_first(count);
                self.unshare_if_empty();
            }
        }
    }

    /// Drops the newest.
    pub(super) fn pop(&mut self) {
        match self {
            Self::Own(own) => drop(own.pop_back()),
            Self::Shared(shared) => {
                shared.pop();
                self.unshare_if_empty();
            }
        }
    }

    /// Changes the newest ones, from the last on until `change` breaks; their order stays.
    pub(super) fn change_newest(
        &mut self,
        mut change: impl FnMut(&mut StoredEvent) -> ControlFlow<()>,
    ) {
        let own = match self {
            Self::Own(own) => own,
            Self::Shared(shared) => &mut shared.own,
        };
        if own.iter_mut().rev().try_for_each(&mut change).is_break() {
            return;
        }
        // Shared events are changed in a copy.
        if let Self::Shared(shared) = self {
            while let Some(mut event) = shared.parts.back().and_then(|it| it.iter().last()).copied()
            {
                let flow = change(&mut event);
                shared.pop_part();
                shared.own.push_front(event);
                if flow.is_break() {
                    break;
                }
            }
            self.unshare_if_empty();
        }
    }

    /// Bytes on the heap; shared parts are counted for each log.
    pub(super) fn heap_size(&self) -> usize {
        let size = |events: &VecDeque<StoredEvent>| events.capacity() * size_of::<StoredEvent>();
        match self {
            Self::Own(own) => size(own),
            Self::Shared(shared) => {
                let parts = shared.parts.iter().map(|part| PART + size(&part.events));
                let places = shared.parts.capacity() * size_of::<EventRange>();
                size_of::<Shared>() + places + parts.sum::<usize>() + size(&shared.own)
            }
        }
    }

    /// Becomes one queue again if no event is shared.
    fn unshare_if_empty(&mut self) {
        if let Self::Shared(shared) = self
            && shared.parts.is_empty()
        {
            *self = Self::Own(std::mem::take(&mut shared.own));
        }
    }
}

/// Bytes of what holds the events of a part.
const PART: usize = size_of::<VecDeque<StoredEvent>>() + 2 * size_of::<usize>();

impl Shared {
    /// Turns the events after the shared ones into a part.
    fn close(&mut self) {
        // A part never grows.
        self.own.shrink_to_fit();
        let events = Arc::new(std::mem::take(&mut self.own));
        debug_assert!(!events.is_empty(), "no part is empty");
        self.parts.push_back(EventRange { start: 0, end: events.len(), events });
    }

    fn before_own(&self) -> usize {
        self.parts.iter().map(EventRange::len).sum()
    }

    fn back(&self) -> Option<&StoredEvent> {
        let of_parts = || self.parts.back().and_then(|part| part.get(part.len() - 1));
        self.own.back().or_else(of_parts)
    }

    fn get(&self, mut index: usize) -> Option<&StoredEvent> {
        for part in &self.parts {
            if index < part.len() {
                return part.get(index);
            }
            index -= part.len();
        }
        self.own.get(index)
    }

    fn partition_point(&self, is_before: impl Fn(&StoredEvent) -> bool) -> usize {
        let mut before = 0;
        for part in &self.parts {
            let count = part.partition_point(&is_before);
            before += count;
            if count < part.len() {
                return before;
            }
        }
        before + self.own.partition_point(is_before)
    }

    fn drop_first(&mut self, mut count: usize) {
        while let Some(part) = self.parts.front_mut().filter(|_| count > 0) {
            if count < part.len() {
                part.start += count;
                return;
            }
            count -= part.len();
            self.parts.pop_front();
        }
        debug_assert!(self.parts.iter().all(|part| part.len() > 0), "no part is empty");
        self.own.drain(..count);
    }

    fn pop(&mut self) {
        if self.own.pop_back().is_none() {
            self.pop_part();
        }
    }

    /// Drops the newest event of the parts.
    fn pop_part(&mut self) {
        if let Some(part) = self.parts.back_mut() {
            part.end -= 1;
            if part.len() == 0 {
                self.parts.pop_back();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Push(usize),
        DropFirst(usize),
        Pop,
        ChangeNewest(usize),
        Share,
        /// Goes on with a copy that was made before.
        Swap,
        Copy,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (1..6_usize).prop_map(Step::Push),
            2 => (0..5_usize).prop_map(Step::DropFirst),
            1 => Just(Step::Pop),
            1 => (1..6_usize).prop_map(Step::ChangeNewest),
            2 => Just(Step::Share),
            2 => Just(Step::Swap),
            2 => Just(Step::Copy),
        ]
    }

    fn flat<'e>(events: impl IntoIterator<Item = &'e StoredEvent>) -> Vec<(u64, u64)> {
        events.into_iter().map(|it| (it.time, it.total)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// Each copy behaves as an independent queue, whatever is shared.
        #[test]
        fn events_are_a_queue(steps in proptest::collection::vec(step(), 0..40)) {
            let mut one = (Events::default(), VecDeque::<StoredEvent>::new());
            let mut other = one.clone();
            let mut count = 0;
            for step in steps {
                let (events, model) = &mut one;
                match step {
                    Step::Push(times) => for _ in 0..times {
                        count += 1;
                        events.push(StoredEvent { time: count, total: count * 10 });
                        model.push_back(StoredEvent { time: count, total: count * 10 });
                    },
                    Step::DropFirst(most) => {
                        let most = most.min(model.len());
                        events.drop_first(most);
                        model.drain(..most);
                    }
                    Step::Pop => {
                        events.pop();
                        model.pop_back();
                    }
                    Step::ChangeNewest(most) => {
                        let mut left = most;
                        events.change_newest(|event| {
                            event.total += 1;
                            left -= 1;
                            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                        });
                        model.iter_mut().rev().take(most).for_each(|event| event.total += 1);
                    }
                    Step::Share => events.share(),
                    Step::Copy => other = one.clone(),
                    Step::Swap => std::mem::swap(&mut one, &mut other),
                }
                for (events, model) in [&one, &other] {
                    prop_assert_eq!(flat(events.iter()), flat(model));
                    prop_assert_eq!(events.len(), model.len());
                    prop_assert_eq!(events.is_empty(), model.is_empty());
                    prop_assert_eq!(flat(events.front()), flat(model.front()));
                    prop_assert_eq!(flat(events.back()), flat(model.back()));
                    for edge in 0..count + 2 {
                        let is_before = |event: &StoredEvent| event.time <= edge;
                        prop_assert_eq!(events.partition_point(is_before), model.partition_point(is_before));
                    }
                    for index in 0..=model.len() {
                        prop_assert_eq!(flat(events.get(index)), flat(model.get(index)));
                    }
                }
            }
        }
    }
}
