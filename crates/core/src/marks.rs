//! States that a long simulation must reach.
//!
//! A mark stands at one place of production code: [`reached!`](crate::reached) counts how often that place runs. A
//! mark that a simulation never reaches is a state in which it finds no bug. Release builds count nothing.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! marks {
    ($($(#[$doc:meta])+ $name:ident,)*) => {
        /// A state that a simulation must reach, at one place of the code.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mark { $($(#[$doc])+ $name,)* }

        impl Mark {
            /// All marks, in the order of their indexes.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Its name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }
        }
    };
}

marks! {
    // core: decisions
    /// A request comes before the latest time that its key stores, by less than a period.
    RequestBeforeStoredTime,
    /// A key stores a time that is later than `now` by a period or more.
    ClockSetBackAtKey,
    /// A request comes before the open window of its key has begun.
    RequestBeforeOpenWindow,
    /// Holds expire in different windows of the calendar.
    CalendarWindowEndsWithOpenHolds,
    /// A denied request counts (`count=all`).
    DenialIsRecorded,
    /// A denied request stores the state under its own policy.
    DenialStoresMigration,
    /// A reserve is admitted for later.
    ReserveIsDelayed,
    /// A reserve would wait longer than it may.
    ReserveIsDenied,
    /// A request under only `concurrency` limits leaves the policy of the other limits.
    PolicyStaysUnderConcurrency,

    // core: holds
    /// A metered hold expires and is charged.
    MeteredHoldExpires,
    /// Only holds expire that charge nothing.
    UnmeteredHoldExpires,
    /// A hold is added that expires before the last of the others.
    HoldsExpireInAnotherOrder,
    /// A hold is made again under an open id.
    HoldIsRepeated,
    /// A settle charges more than was held.
    SettleBeyondHold,
    /// A settle charges less than was held.
    SettleBelowHold,
    /// A settle under only `concurrency` limits charges the policy that the key is stored with.
    SettleChargesOtherPolicy,
    /// A settle comes after the hold has ended.
    SettleOfNoOpenHold,
    /// A renew comes after the hold has ended.
    RenewOfNoOpenHold,
    /// One of several keys denies a request, and another would pass it.
    MultiKeyDeniedByOneKey,
    /// A hold of several keys is open on one of them.
    MultiKeyHoldIsOpenOnOneKey,

    // core: changes of the policy
    /// A TAT stays as it is, because the rate does.
    MigratedGcraSameRate,
    /// A TAT is converted to another rate.
    MigratedGcraOtherRate,
    /// An interval bucket keeps the time of its last step.
    MigratedBucketKeepsStep,
    /// An interval bucket begins its steps with the change, because a step of the new length is due.
    MigratedBucketRestartsStep,
    /// An open window stays open under a new limit.
    MigratedWindowStaysOpen,
    /// An open window is over under a shorter period.
    MigratedWindowIsOver,
    /// A log changes to another limit.
    MigratedLog,
    /// A log is read under another limit without a copy.
    MigratedLogIsReadInPlace,
    /// Both counts of a counter stay.
    MigratedCounterSamePeriod,
    /// The estimate of a counter becomes its count.
    MigratedCounterOtherPeriod,
    /// Units in use carry over to another algorithm.
    MigratedToOtherAlgorithm,
    /// One more log begins with the events of the longest old one.
    AdditionalLogIsCopied,
    /// Limits of different algorithms pair up in order.
    LeftoverLimitsPair,

    // core: waiting
    /// The head of a queue is woken when its deadline is over.
    HeadIsWokenAtDeadline,
    /// The head of a queue leaves it without passing, and others wait.
    HeadLeavesOthers,
    /// A reservation is denied by a fallback decision, and is tried again.
    LoneWaiterOutlastsFallback,
    /// A request that waits without a queue pauses between two attempts.
    LoneWaiterPauses,
    /// A request passes for a departure after its deadline, and gives it back.
    PassIsGivenBackAfterDeadline,
    /// A waiter leaves whose projected pass others are projected after.
    ProjectedWaiterLeaves,
    /// A waiter is projected to miss its deadline.
    ProjectedWaiterMissesDeadline,
    /// A waiter passes as projected, and others are projected after it.
    ProjectedWaiterPasses,
    /// A projection still holds, and is continued for one more waiter.
    ProjectionIsContinued,
    /// A projection no longer holds when it is next used.
    ProjectionIsOutOfDate,
    /// A request is denied at once, because it would not pass before its deadline.
    WaiterIsDeniedOnArrival,
    /// A request is denied that would pass out of turn.
    WaiterIsDeniedThoughItWouldPass,
    /// A request has passed, and is held until its departure.
    WaiterIsHeldUntilDeparture,
    /// A client leaves before the departure of its request.
    DepartureIsCancelled,
    /// A request is denied that an earlier peek would have allowed, or waits without one.
    WaiterIsOvertakenAfterPeek,
    /// A request waits while the server stops.
    WaiterIsStopped,
    /// A waiter leaves from behind the head of its queue.
    WaiterLeavesWithoutBeingHead,
    /// A request for several keys goes to the queue of another key.
    WaiterMovesToAnotherQueue,
    /// A waiter is woken because another request has begun a window.
    WaiterWokenByBegunWindow,
    /// A waiter is woken by a refund.
    WaiterWokenByRefund,
    /// A waiter is woken by a renew.
    WaiterWokenByRenew,
    /// A waiter is woken by a reset.
    WaiterWokenByReset,
    /// A waiter is woken by a settle.
    WaiterWokenBySettle,
    /// A hold that arrives to wait is open already.
    WaitingHoldIsOpenAlready,

    // memory
    /// A change of a key has no space in a full table.
    ChangeHasNoSpace,
    /// A change of a key for which there may be no space is made on a copy.
    ChangeIsMadeOnCopy,
    /// A state no longer fits in its slot.
    EntryLeavesSlot,
    /// A state fits in its slot again.
    EntryReturnsToSlot,
    /// Expired holds are not charged yet, because a full table has no space.
    ExpiredHoldsHaveNoSpace,
    /// An entry without a hold gives way to that of another key.
    IdleEntryIsReplaced,
    /// A key of a file gets a slot by moves of any number of others.
    KeyIsInsertedByMoves,
    /// A key moves to its other bucket for a new one.
    KeyMovesToOtherBucket,
    /// A request for several keys has no space in a full table.
    MultiKeyHasNoSpace,
    /// No number is free for a policy.
    PolicyHasNoNumber,
    /// A number is used again for another policy, while a slot still has it.
    PolicyNumberUsedAgain,
    /// A segment is split.
    SegmentIsSplit,
    /// A new key gets the slot of a recovered one.
    SlotIsReclaimedForNewKey,
    /// A table at its bound has no slot for a new key.
    TableCannotGrow,
    /// A full table rejects a change.
    TableFull,
    /// An entry is gone that its segment had when a snapshot of it began.
    SnapshotMissesRemovedEntry,
    /// A state file has a key that has recovered.
    FileHasRecoveredKey,
    /// A state file does not fit into a smaller table.
    FileIsTooLargeForTable,
    /// A table that was full is laid out as it was saved.
    TableIsRestoredAsSaved,
    /// A table is made from a file and grows as usual.
    TableIsRestoredGrowing,

    // redis: the denial cache
    /// A cached denial answers a take.
    DenialIsFromCache,
    /// A cached denial of one key answers a request for several.
    MultiKeyDenialIsFromCache,
    /// A denial is cached for a period only, because another request may begin the window earlier.
    CachedDenialEndsWithPeriod,
    /// A reply is not cached, because its key was forgotten while the command was in flight.
    DenialComesTooLate,
    /// The end of an operation that may give back units forgets the denials of its key.
    DenialsAreForgottenAtTheEnd,
    /// The denials of a key are forgotten, and its usage stays for the fallback.
    DenialsAreForgottenButNotUsage,
    /// A reply under another policy ends the cached denials of its key.
    DenialsOfOtherPolicyAreForgotten,

    // redis: leases
    /// The store grants more units than the request needs.
    ChunkIsGranted,
    /// The store denies a chunk, but may allow the request alone.
    ChunkIsDenied,
    /// The store denies a chunk while other requests wait for their turn to ask for one.
    RefillIsDeniedWhileOthersWait,
    /// A chunk is granted to a lease that was reset or has another policy by now.
    ChunkIsLost,
    /// A lease with unspent units gets another policy.
    LeaseEndsWithItsPolicy,
    /// A take finds units that have expired.
    LeaseExpiresBeforeTake,
    /// Unspent units are not owed any more.
    LeaseIsForfeited,
    /// The refund of unspent units fails.
    LeaseIsNotReturned,
    /// A part of the unspent units is owed still.
    LeaseIsPartlyOwed,
    /// A lease expires while a request takes the next chunk.
    LeaseIsRefilledWhileItExpires,
    /// A reset clears unspent units.
    LeaseIsReset,
    /// The application refunds more than was used: unspent units are among them.
    RefundReturnsUnspentUnits,
    /// Unspent units are returned.
    LeaseIsReturned,
    /// A request waits for the refill of another one until its deadline.
    RefillIsWaitedForTooLong,
    /// The application refunds while a chunk is in flight.
    RefundDuringRefill,
    /// A key gets no lease, because there are too many or it is too long.
    TooManyLeases,
    /// Unspent units expire while the next chunk is in flight.
    UnitsExpireDuringRefill,

    // redis: fallbacks
    /// A fallback decision allows without a state.
    FallbackAllows,
    /// A fallback decision denies without a state.
    FallbackDenies,
    /// A policy returns the error of the store.
    FallbackFails,
    /// A process allows a request by its own state.
    FallbackLocalAllows,
    /// A process denies a request by its own state.
    FallbackLocalDenies,
    /// A fallback decision opens a hold.
    FallbackHolds,
    /// A hold of the fallback is settled or renewed after the store is available again.
    FallbackHoldEndsWithStore,
    /// A fallback holds the units that the store has last reported as held.
    FallbackHoldsReportedUnits,
    /// A fallback begins with the usage that the store has last reported.
    FallbackCountsReportedUsage,
    /// A fallback decides a request for several keys.
    FallbackDecidesSeveralKeys,
    /// A reset in the store also resets the state of the fallback.
    FallbackStateIsReset,

    // redis: commands
    /// An operation on a hold is sent again, because its outcome is unknown.
    HoldIsSentAgain,
    /// An operation on a hold has no reply after all attempts.
    HoldHasUnknownOutcome,
    /// A hold of several keys is sent again.
    MultiKeyHoldIsSentAgain,
    /// An operation without a reply is not repeated, because the store may have applied it.
    OperationIsNotRepeated,
    /// One of several keys in different slots denies, and those before are refunded.
    KeysInTurnAreRefunded,
    /// One of several keys in different slots fails, and those before are refunded.
    KeysInTurnFail,
    /// A part of a pipeline is sent again with the texts of its scripts.
    PipelineIsSentAgain,
    /// Only a part of a pipeline is sent again.
    PipelineIsPartlySentAgain,
    /// An operation of a pipeline is sent again alone.
    PipelinedOperationIsSentAlone,
    /// A node does not have a script.
    ScriptIsSent,
    /// A script needs a calendar of a policy that is stored.
    ScriptRequestsCalendars,
    /// A node replies `MOVED`.
    SlotHasMoved,
    /// A node replies `ASK`.
    SlotIsAskedFor,
    /// No node of a slot is known.
    SlotHasNoNode,
    /// A node replies `CLUSTERDOWN`.
    ClusterIsDown,
    /// A node replies `TRYAGAIN`.
    ClusterSaysTryAgain,
    /// A node replies that it accepts no writes.
    NodeRejectsWrites,
    /// A node is no longer in the map of the cluster.
    NodeLeavesCluster,

    // redis: connections
    /// A circuit breaker opens.
    BreakerOpens,
    /// A circuit breaker closes.
    BreakerCloses,
    /// An open circuit breaker rejects a command.
    BreakerRejectsCommand,
    /// A command waits, because the node has stopped replying.
    CommandIsHeldBack,
    /// A connection ends while a command is in flight.
    ConnectionEndsBeforeReply,
    /// A connection ends right after it was established.
    ConnectionIsShortLived,
    /// A probe succeeds while the circuit breaker is open.
    ProbeFindsOpenBreakerWorking,
    /// A probe is answered late while the circuit breaker is closed.
    ProbeIsSlow,
    /// A probe fails while the circuit breaker is open.
    ProbeOfOpenBreakerFails,
    /// A reply has not come by the deadline.
    ReplyIsLate,

    // holds and the library
    /// A hold was denied by a fallback, and the store may have made it.
    DeniedHoldMayBeOpen,
    /// A dropped guard settles its hold in the background.
    DroppedHoldIsSettled,
    /// A dropped guard cancels a hold that the store may have made.
    HoldOfUnknownOutcomeIsCancelled,
    /// A renewal finds that its hold is not open any more.
    RenewedHoldIsOver,
    /// A request is dropped that has a reservation.
    ReservationIsDropped,
    /// A request is dropped that reserves units, and the answer is not there yet.
    ReservationIsDroppedUnanswered,
    /// A settle in the background is sent again.
    SettleIsRepeated,
    /// A shaper continues the reservation of a call that was dropped.
    ShaperContinuesReservation,
    /// A shaper keeps the send time of a call that was dropped.
    ShaperKeepsSendTime,

    // server
    /// The budget for buffers has no space.
    BufferBudgetIsExhausted,
    /// A client sends more while it waits than is kept.
    BytesOfWaitingClientAreLeftUnread,
    /// A policy gives way to another one in the cache of a worker.
    CachedPolicyIsReplaced,
    /// A client is closed that does not read its replies.
    ClientDoesNotRead,
    /// A client does not take its replies at once.
    ClientIsSlowToRead,
    /// A client leaves while its request waits.
    ClientLeavesWhileItWaits,
    /// A client is closed that has sent too much while it waited.
    ClientSendsTooMuchWhileItWaits,
    /// A command is decided as the one before it, with another key.
    CommandIsRepeated,
    /// Commands arrive while the server stops.
    CommandsArriveAsServerStops,
    /// A pipeline goes on behind a command that waits.
    CommandsComeBehindWaitingOne,
    /// An idle client is closed.
    IdleClientIsClosed,
    /// A pipeline ends with an invalid command.
    ProtocolErrorBehindCommands,
    /// So many replies are pending that they are sent before the next command runs.
    RepliesAreSentBeforeNextCommand,
    /// A client is closed, because there is no memory for its replies.
    RepliesHaveNoMemory,
    /// A client is closed that does not finish a command.
    UnfinishedCommandIsClosed,
    /// A request that would wait is rejected, because there is no memory for it.
    WaitingRequestHasNoMemory,

    // server: the state file
    /// The lock of the state file was removed.
    LockOfStateFileIsLost,
    /// A snapshot cannot be written.
    SnapshotFails,
    /// A damaged state file is renamed.
    StateFileIsDamaged,
    /// There is no state file.
    StateFileIsMissing,
    /// A process has left an incomplete snapshot.
    TemporaryFileIsLeftOver,
}

static COUNTS: [AtomicU64; Mark::ALL.len()] = [const { AtomicU64::new(0) }; Mark::ALL.len()];

impl Mark {
    /// Counts that this process has reached it.
    pub fn count(self) {
        COUNTS[self as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// The name of each mark, and the number of times that this process has reached it.
#[must_use]
pub fn counts() -> Vec<(&'static str, u64)> {
    let count = |(mark, count): (&Mark, &AtomicU64)| (mark.name(), count.load(Ordering::Relaxed));
    Mark::ALL.iter().zip(&COUNTS).map(count).collect()
}

/// Counts that the code has reached a [`Mark`](crate::marks::Mark), `if` a condition holds. Without debug assertions it
/// does nothing, and does not evaluate the condition.
#[doc(hidden)]
#[macro_export]
macro_rules! reached {
    ($mark:ident) => {
        if cfg!(debug_assertions) {
            $crate::marks::Mark::$mark.count();
        }
    };
    ($mark:ident if $condition:expr) => {
        if cfg!(debug_assertions) && $condition {
            $crate::marks::Mark::$mark.count();
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_mark_reached_twice_is_two() {
        let count = |name| counts().into_iter().find(|it| it.0 == name).map(|it| it.1);
        let before = count("TableFull").expect("it is a mark");
        reached!(TableFull);
        reached!(TableFull if false);
        reached!(TableFull if before == before);
        assert_eq!(count("TableFull"), Some(before + 2).filter(|_| cfg!(debug_assertions)));
    }

    #[test]
    fn mark_indexes_are_those_of_all() {
        assert!(Mark::ALL.iter().enumerate().all(|(index, mark)| *mark as usize == index));
    }
}
