//! Bugs of the store on a cluster: redirects, the map of slots, and keys of several slots.

use super::mutant::{Mutant, mutant};

const INNER: &str = "crates/redis/src/inner.rs";
const TOPOLOGY: &str = "crates/redis/src/net/topology.rs";
const NODE: &str = "crates/redis/src/net/node_connection.rs";
const REPLY: &str = "crates/redis/src/reply.rs";
const SLOT: &str = "crates/redis/src/slot.rs";

pub(super) const MUTANTS: &[Mutant] = &[
    mutant(
        "an ASK is followed without ASKING",
        INNER,
        "(asking, whole) = (!moved, false);",
        "(asking, whole) = (false, false);",
    ),
    mutant(
        "ASKING is sent for the first command only",
        INNER,
        "                    self.context.counts.scripts_sent.one();\n                    whole = true;\n",
        "                    self.context.counts.scripts_sent.one();\n                    (whole, asking) = (true, false);\n",
    ),
    mutant(
        "an ASK is taken for a MOVED",
        REPLY,
        "        \"ASK\" => false,\n",
        "        \"ASK\" => true,\n",
    ),
    mutant("a MOVED is an error", REPLY, "        \"MOVED\" => true,\n", ""),
    mutant(
        "a MOVED is followed to the node that replied",
        INNER,
        "node = self.topology.redirected(slot, &to, &node, moved)?;",
        "let _ = self.topology.redirected(slot, &to, &node, moved)?;",
    ),
    mutant(
        "a MOVED leaves the slot where it was",
        TOPOLOGY,
        "            map.assign(slot, slot, &node);\n            drop(map);\n            cluster.refresh();\n",
        "            drop(map);\n",
    ),
    mutant(
        "a MOVED assigns all slots up to that one",
        TOPOLOGY,
        "            map.assign(slot, slot, &node);\n            drop(map);\n            cluster.refresh();\n",
        "            map.assign(0, slot, &node);\n            drop(map);\n",
    ),
    mutant(
        "the map is never read again",
        TOPOLOGY,
        "        if self.refreshing.swap(true, Ordering::Relaxed) {\n            return;",
        "        if self.refreshing.swap(true, Ordering::Relaxed) || !self.has_no_map() {\n            return;",
    ),
    mutant(
        "the map can be read again only once",
        TOPOLOGY,
        "                    cluster.refreshing.store(false, Ordering::Relaxed);\n",
        "",
    ),
    mutant(
        "the last slot of a range has no node",
        TOPOLOGY,
        "for slot in first..=last.min(SLOTS - 1) {",
        "for slot in first..last.min(SLOTS - 1) {",
    ),
    mutant(
        "a slot is that of the whole key",
        SLOT,
        "        Some(close @ 1..) => &inner[..close],\n",
        "        Some(close @ 1..) if close > 99 => &inner[..close],\n",
    ),
    mutant(
        "a command that was redirected is sent twice",
        INNER,
        "                    node = self.topology.redirected(slot, &to, &node, moved)?;\n",
        "                    node = self.topology.redirected(slot, &to, &node, moved)?;\n                    let again = command.command(&node, true, &requested)?;\n                    let _ = node.command(&again, deadline).await;\n",
    ),
    mutant(
        "keys of several slots are sent in one command",
        INNER,
        "            || slots.clone().all(|it| Some(it) == slots.clone().next());",
        "            || slots.clone().count() > 1;",
    ),
    mutant(
        "keys of several slots are not returned",
        INNER,
        "if answer.source != Source::Store || cost == 0",
        "if answer.source != Source::Lease || cost == 0",
    ),
    mutant(
        "keys of several slots are returned twice",
        INNER,
        "            match self.decide(take.with(refund), deadline).await {\n",
        "            let _ = self.decide(take.with(refund), deadline).await;\n            match self.decide(take.with(refund), deadline).await {\n",
    ),
    mutant(
        "keys of several slots are taken after a denial",
        INNER,
        "                if answers.last().is_some_and(|answer| !answer.allowed()) {\n                    break;",
        "                if answers.last().is_some_and(|answer| !answer.allowed()) && answers.len() > 1 {\n                    break;",
    ),
    mutant(
        "redirects in a pipeline are errors",
        INNER,
        "            Ok(\n                ReplyKind::NoScript\n",
        "            Ok(ReplyKind::Redirect { to, .. }) => self.fall_back(planned, StoreError::Unavailable(to)),\n            Ok(\n                ReplyKind::NoScript\n",
    ),
    mutant(
        "a pipeline has the keys of all slots",
        INNER,
        "let slot = if alone { 0 } else { slot(&planned.key) };",
        "let slot = if alone { 0 } else { slot(&planned.key) / 8192 };",
    ),
    mutant(
        "a probe of a node has a key",
        NODE,
        "let keys = u8::from(!self.is_in_cluster());",
        "let keys = u8::from(self.is_in_cluster());",
    ),
];
