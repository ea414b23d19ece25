//! Changes of the shards of a cluster: replicas take over, and slots move.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{cluster::Migration, servers::Servers, slots::slot_of};

/// Time until a key is moved again when one of the nodes did not run.
const MOVE_AGAIN: Duration = Duration::from_millis(10);

/// Time within which a replica takes over.
const MAX_ELECTION: Duration = Duration::from_millis(500);

impl Servers {
    /// A node ends, and starts again after `span` without the writes of the last `lost`.
    pub(crate) fn restart(&self, node: usize, span: Duration, lost: Duration) {
        self.finish_migrations_of(node);
        self.nodes[node].restart(span, lost);
    }

    /// Another server takes over, without the writes of the last `lost`: of a cluster, the replica of each shard.
    pub(crate) fn fail_over_all(&self, lost: Duration) {
        let Some(cluster) = &self.cluster else { return self.nodes[0].fail_over(lost) };
        let primaries = cluster.state.lock().map.primaries.clone();
        primaries.into_iter().for_each(|primary| self.fail_over(primary, lost));
    }

    /// The replica of the shard of `node` takes over, without what its primary wrote in the last `lost`. The primary becomes
    /// its replica.
    pub(crate) fn fail_over(&self, node: usize, lost: Duration) {
        let since = Instant::now().checked_sub(lost);
        self.promote(node, since);
    }

    fn promote(&self, node: usize, since: Option<Instant>) {
        let Some(cluster) = &self.cluster else { return };
        let (shard, primary, replica) = {
            let state = cluster.state.lock();
            let shard = state.shard(node);
            (shard, state.map.primaries[shard], state.replica(shard))
        };
        if !self.nodes[replica].runs() {
            return;
        }
        self.finish_migrations_of(node);
        let keys = self.keys_of(primary);
        self.nodes[primary].hand_over(&self.nodes[replica], since);
        cluster.state.lock().map.primaries[shard] = replica;
        self.log.add(format_args!("node {replica} takes over from node {primary}"));
        keys.iter().for_each(|key| self.set_owner(key, replica));
    }

    /// The primary of the shard of `node` ends, and starts again after `span`. After half of it, but soon, its replica has taken over,
    /// without what was written in the last `lost` before the end. Returns the primary.
    pub(crate) fn lose_primary(
        self: &Arc<Self>,
        node: usize,
        span: Duration,
        lost: Duration,
    ) -> usize {
        let Some(cluster) = &self.cluster else { return node };
        let shard = cluster.state.lock().shard(node);
        let primary = cluster.state.lock().map.primaries[shard];
        self.finish_migrations_of(node);
        let begin = Instant::now();
        self.nodes[primary].restart(span, Duration::ZERO);
        let elected = (span / 2).min(MAX_ELECTION);
        self.checks.disturbed(millis(elected));
        let (servers, since) = (Arc::clone(self), begin.checked_sub(lost));
        tokio::spawn(async move {
            sleep(elected).await;
            let Some(cluster) = &servers.cluster else { return };
            let is_primary = || cluster.state.lock().map.primaries[shard] == primary;
            if is_primary() {
                servers.promote(primary, since);
            }
            // Without a new primary, or while a node sends clients to the old one, keys are not available.
            let until = if is_primary() { begin + span } else { begin };
            let until = until.max(cluster.state.lock().stale_until());
            servers.checks.disturbed(millis(until.saturating_duration_since(Instant::now())));
        });
        primary
    }

    /// The slot of a key moves to the shard of `node`, key by key, within `span`.
    pub(crate) fn migrate(self: &Arc<Self>, key: usize, node: usize, span: Duration) {
        let (Some(cluster), Some(key)) = (&self.cluster, self.keys.get(key)) else { return };
        let slot = slot_of(key);
        let mut state = cluster.state.lock();
        let (from, to) = (state.map.shard_of(slot), state.shard(node));
        if from == to || state.migrations.iter().any(|it| it.slot == slot) {
            return;
        }
        state.last_migration += 1;
        let migration = Migration { number: state.last_migration, slot, from, to };
        state.migrations.push(migration);
        drop(state);
        let keys = self.keys_in(slot);
        keys.iter().for_each(|key| self.checks.migrates(key, true));
        let pause = span / u32::try_from(keys.len() + 1).unwrap_or(1);
        let servers = Arc::clone(self);
        tokio::spawn(async move {
            for key in keys {
                sleep(pause).await;
                while servers.is_under_way(migration) && !servers.can_move(migration) {
                    sleep(MOVE_AGAIN).await;
                }
                if servers.is_under_way(migration) {
                    servers.move_key(migration, &key);
                }
            }
            sleep(pause).await;
            servers.finish(migration);
        });
    }

    /// Whether a slot moves.
    pub(crate) fn is_migrating(&self) -> bool {
        self.cluster.as_ref().is_some_and(|it| !it.state.lock().migrations.is_empty())
    }

    fn keys_in(&self, slot: u16) -> Vec<Vec<u8>> {
        self.keys.iter().filter(|key| slot_of(key) == slot).cloned().collect()
    }

    fn is_under_way(&self, migration: Migration) -> bool {
        let contains =
            |it: &super::cluster::Cluster| it.state.lock().migrations.contains(&migration);
        self.cluster.as_ref().is_some_and(contains)
    }

    /// The primaries of both shards.
    fn ends(&self, migration: Migration) -> Option<(usize, usize)> {
        let state = self.cluster.as_ref()?.state.lock();
        Some((state.map.primaries[migration.from], state.map.primaries[migration.to]))
    }

    fn can_move(&self, migration: Migration) -> bool {
        let runs = |node: usize| self.nodes[node].runs();
        self.ends(migration).is_some_and(|(from, to)| runs(from) && runs(to))
    }

    fn move_key(&self, migration: Migration, key: &[u8]) {
        let Some((from, to)) = self.ends(migration) else { return };
        if self.nodes[from].move_key(&self.nodes[to], key) {
            self.log.add(format_args!("{} moves to node {to}", key.escape_ascii()));
            self.set_owner(key, to);
        }
    }

    /// The rest of the keys moves at once, and the slot with them.
    fn finish(&self, migration: Migration) {
        let (true, Some(cluster)) = (self.is_under_way(migration), &self.cluster) else { return };
        let keys = self.keys_in(migration.slot);
        keys.iter().for_each(|key| self.move_key(migration, key));
        let mut state = cluster.state.lock();
        state.migrations.retain(|it| *it != migration);
        state.map.assign(migration.slot, migration.to);
        let node = state.map.primaries[migration.to];
        drop(state);
        self.log.add(format_args!("slot {} is at node {node}", migration.slot));
        for key in keys {
            self.checks.migrates(&key, false);
            self.set_owner(&key, node);
        }
    }

    /// Nodes that migrate a slot do not end before they are done. (In Redis 7.0, the new primary forgets the migration,
    /// and an operator has to repair it.)
    fn finish_migrations_of(&self, node: usize) {
        let Some(cluster) = &self.cluster else { return };
        let shard = cluster.state.lock().shard(node);
        let migrations = cluster.state.lock().migrations.clone();
        let concerned = migrations.into_iter().filter(|it| it.from == shard || it.to == shard);
        concerned.for_each(|migration| self.finish(migration));
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
