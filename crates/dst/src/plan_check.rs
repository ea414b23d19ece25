//! Which steps a plan may have.

use anyhow::{Result, ensure};

use crate::{
    plan::{Action, PermitPlan, Plan, Step},
    server::ServerPlan,
};

impl Plan {
    /// Whether all names of a step exist.
    pub(crate) fn check(&self, step: &Step) -> Result<()> {
        ensure!(step.process < self.processes, "unknown process `{}`", step.process);
        let policies = |key: usize| self.keys.get(key).map_or(0, |it| it.0.len());
        match &step.action {
            Action::Request(requests) => {
                let known = requests.iter().all(|it| policies(it.0) > 0);
                ensure!(known && !requests.is_empty(), "unknown key");
                let alone = self.server.is_some()
                    || requests.len() == 1
                    || !requests.iter().any(|it| it.1.is_on_hold());
                ensure!(alone, "an operation on a hold is a call of its own");
            }
            Action::All { requests, timeout } => {
                let known = requests.iter().all(|it| policies(it.0) > 0);
                ensure!(known && !requests.is_empty(), "unknown key");
                ensure!(self.table.is_none(), "a table gets takes on several keys as requests");
                let can_wait = *timeout == 0 || self.server.is_some();
                ensure!(can_wait, "requests for several keys wait at a server");
            }
            Action::Wait { key, request, .. } => {
                ensure!(self.table.is_none(), "no request waits at a table");
                let waits_at_server = self.server.is_some() || !request.is_on_hold();
                ensure!(waits_at_server, "holds wait at a server, and permits in the library");
                let is_valid = policies(*key) > 0 && request.cost() > 0;
                ensure!(is_valid, "unknown key, or nothing to wait for");
            }
            Action::Permit(PermitPlan { key, cost, .. }) => {
                ensure!(self.has_processes(), "permits need processes with the library");
                ensure!(policies(*key) > 0 && *cost > 0, "unknown key, or nothing to hold");
            }
            Action::Push { key, .. } => {
                ensure!(self.has_processes(), "shapers need processes with the library");
                ensure!(policies(*key) == 1, "unknown key, or several policies");
            }
            Action::Pipeline { key, count, .. } => {
                ensure!(self.server.is_some(), "a pipeline needs a server");
                ensure!(policies(*key) > 0 && *count > 0, "unknown key, or no commands");
            }
            Action::UsePolicy { key, policy } => {
                ensure!(*policy < policies(*key), "unknown key or policy");
                let has_name = |server: &ServerPlan| server.named.contains(key);
                ensure!(self.server.as_ref().is_none_or(has_name), "key {key} has no named policy");
            }
            Action::Reload(_) => {
                ensure!(self.server.is_some(), "rules need a server");
            }
            Action::Flood { key, .. } => {
                ensure!(self.table.is_some(), "a flood needs a table");
                ensure!(policies(*key) > 0, "unknown key");
            }
            Action::Revisit { .. } => ensure!(self.table.is_some(), "a flood needs a table"),
            Action::NodeFault { node, kind, .. } => {
                let nodes = self.cluster.map_or(0, |it| it.nodes());
                ensure!(self.has_processes() && *node < nodes, "unknown node `{node}`");
                ensure!(kind.is_of_node(), "`{kind}` does not happen to a node");
            }
            Action::Fault { kind, .. } if self.server.is_some() => {
                ensure!(kind.is_of_client(), "`{kind}` does not happen to a client");
            }
            Action::Fault { kind, .. } => match self.table {
                Some(_) => ensure!(kind.is_of_table(), "`{kind}` does not happen to a table"),
                None => ensure!(kind.is_of_processes(), "`{kind}` happens to a table"),
            },
        }
        Ok(())
    }
}
