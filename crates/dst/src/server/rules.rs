//! The rules of a server: policies by name, and their reloads.

use anyhow::{Result, ensure};
use sluicegate_core::PreparedPolicy;
use sluicegate_server::simulation::SimulatedServer;

use super::plan::ServerPlan;
use crate::plan::{KeyPlan, PolicyPlan, ReloadedRules};

/// The policies of all keys, of which some have names.
#[derive(Debug)]
pub(super) struct Rules {
    policies: Vec<Vec<PolicyPlan>>,
    named: Vec<usize>,
    /// The index of the policy in force of each key.
    used: Vec<usize>,
    /// The number of the rules in force.
    version: u64,
    /// Whether the file has invalid rules.
    are_invalid: bool,
}

impl Rules {
    pub(super) fn new(
        keys: &[KeyPlan],
        ServerPlan { named, .. }: &ServerPlan,
    ) -> Result<Self> {
        for (index, KeyPlan(policies)) in keys.iter().enumerate() {
            let is_named = named.contains(&index);
            ensure!(
                is_named || policies.len() == 1,
                "key {index} has several policies, but no name"
            );
            ensure!(policies.iter().all(|it| it.lease == 0), "a server has no leases");
        }
        let policies = keys.iter().map(|key| key.0.clone()).collect();
        let used = vec![0; keys.len()];
        let (named, version) = (named.clone(), 1);
        Ok(Self { policies, named, used, version, are_invalid: false })
    }

    /// How commands give the policy of a key.
    pub(super) fn given(&self, key: usize) -> String {
        let is_named = self.named.contains(&key);
        if is_named { format!("@policy{key}") } else { self.policies[key][0].policy.clone() }
    }

    /// The policy of a key that is in force.
    pub(super) fn policy(&self, key: usize) -> Result<PreparedPolicy> {
        self.policies[key][self.used[key]].prepare()
    }

    /// The text of the rules.
    pub(super) fn text(&self) -> String {
        self.with(&self.used)
    }

    fn with(&self, used: &[usize]) -> String {
        let mut text = "policies:\n  unused: 'gcra:1/1s'\n".to_owned();
        for &key in &self.named {
            let policy = &self.policies[key][used[key]].policy;
            text.push_str(&format!("  policy{key}: '{policy}'\n"));
        }
        text
    }

    /// Another policy of a key is in force from now on. What is wrong with the reload.
    pub(super) fn change(
        &mut self,
        server: &SimulatedServer,
        key: usize,
        policy: usize,
    ) -> Option<String> {
        let before = self.text();
        self.used[key] = policy;
        self.reload_valid(server, self.text() != before)
    }

    /// Reloads rules that change nothing. Returns the error in the report, if there is one.
    pub(super) fn reload(
        &mut self,
        server: &SimulatedServer,
        rules: ReloadedRules,
    ) -> Option<String> {
        match rules {
            ReloadedRules::Same => self.reload_valid(server, false),
            ReloadedRules::Invalid => {
                let others = self.used.iter().zip(&self.policies);
                let others: Vec<_> = others.map(|(used, all)| (used + 1) % all.len()).collect();
                let report = server
                    .reload(format!("{}  wrong: 'gcra:0/1s'\n", self.with(&others)));
                self.are_invalid = true;
                let is_right = report.as_ref().is_err_and(|error| error.contains("gcra:0/1s"));
                (!is_right).then(|| format!("{report:?} for invalid rules"))
            }
        }
    }

    fn reload_valid(&mut self, server: &SimulatedServer, differs: bool) -> Option<String> {
        // Those that replace invalid ones are a new version in any case.
        let changed = std::mem::take(&mut self.are_invalid) || differs;
        self.version += u64::from(changed);
        let expected = Ok((self.version, changed));
        let report = server.reload(self.text()).map(|it| (it.version, it.changed));
        (report != expected).then(|| format!("{report:?} in place of {expected:?}"))
    }
}
