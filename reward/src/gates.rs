//! The gates of a run: named filters, all of which a group must pass. Each gate counts the groups that it
//! passes and rejects.
//!
//! [`crate::GroupFilter`] is the filter of the published recipe; the `variance` gate without a tolerance
//! makes the same decisions.
//!
//! Every gate except the outside gates checks every group, even when another gate has rejected the group
//! already. The counters therefore do not depend on the order of the gates, and a rejection can report
//! whether all the gates that reject the group would yield. The gates named in [`KeepIfShort`] yield when a
//! step runs out of prompts. A group that only such gates reject has [`Rejection::yields`] set, and the
//! caller may accept it after all.
//!
//! # Invariants
//! - Apart from outside gates, the result is a pure function of the group and the gates.
//! - For each gate, seen = passed + rejected, and kept <= rejected. Counting never waits.
//!
//! # Deliberately absent
//! Gates do not decide whether a step is short, because only the caller knows the step's prompts and target.

mod alike;
mod outside;
mod rule;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::invariants::Violation;
use crate::{FilterMetric, GroupFilter, RewardError};
use outside::Outside;

pub use alike::Finished;
pub use outside::GateRow;
pub use rule::GateRule;

/// Maximum number of gates of a run.
pub const GATES_MAX: usize = 32;
/// Maximum number of bytes of a gate's name.
pub const GATE_NAME_BYTES_MAX: usize = 64;

/// The group that a gate checks: each list has one value per valid sample, in the same order. Failed samples
/// are left out.
#[derive(Debug, Clone, Copy, Default)]
pub struct GroupView<'a> {
    /// The accuracy of each response, from 0 to 1.
    pub accs: &'a [f32],
    /// Rewards, shaping included.
    pub rewards: &'a [f32],
    /// Whether the response was cut off at the token limit.
    pub truncated: &'a [bool],
    /// Response lengths in tokens.
    pub tokens: &'a [u32],
}

impl GroupView<'_> {
    fn is_even(&self) -> bool {
        let samples = self.accs.len();
        samples == self.rewards.len() && samples == self.truncated.len() && samples == self.tokens.len()
    }
}

/// Why a gate rejects a group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Refusal {
    /// The name of the reason in ledgers, tables and metrics.
    pub reason: &'static str,
    /// The value that the gate measured.
    pub value: f64,
}

/// A filter of groups. Many threads call it, once per group; it must neither wait nor panic.
pub trait Gate: Send + Sync + 'static {
    /// Whether the group passes.
    fn check(&self, group: &GroupView<'_>) -> Result<(), Refusal>;
}

/// A rejected group.
#[derive(Debug, Clone, PartialEq)]
pub struct Rejection {
    /// The name of the first gate, in the order of the list, that rejects the group and does not yield. If
    /// all rejecting gates yield, the name of the first of them.
    pub gate: Arc<str>,
    /// The name of the reason; see [`Refusal::reason`].
    pub reason: &'static str,
    /// The value that the gate measured; see [`Refusal::value`].
    pub value: f64,
    /// Whether every gate that rejected the group is in [`KeepIfShort`]; the group may then be accepted when
    /// the prompts run out.
    pub yields: bool,
}

impl Rejection {
    /// Combines the results of [`Gates::check`] (`inside`) and [`Gates::ask`] (`outside`). Returns the first
    /// rejection that does not yield, or else the first rejection.
    pub fn of_both(inside: Result<(), Self>, outside: Result<(), Self>) -> Result<(), Self> {
        match (inside, outside) {
            (Err(inside), Err(outside)) if inside.yields && !outside.yields => Err(outside),
            (Err(first), _) | (Ok(()), Err(first)) => Err(first),
            (Ok(()), Ok(())) => Ok(()),
        }
    }
}

/// A gate with its options: `{ gate = "variance", metric = "acc", tolerance = 0.0 }`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GateConfig {
    /// The name in counters and rejections; by default the name of the rule. Names must differ within a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The rule and its options. Unknown keys are refused.
    #[serde(flatten)]
    pub rule: GateRule,
}

impl GateConfig {
    /// The name in counters and rejections.
    pub fn called(&self) -> &str {
        self.name.as_deref().unwrap_or(self.rule.name())
    }
}

/// The gates that yield when a step runs out of prompts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KeepIfShort {
    /// The names of these gates; no other gate yields.
    pub gates: Vec<String>,
}

/// The configuration of the gates of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GatesConfig {
    /// The gates, all of which a group must pass; an empty list passes every group.
    pub gates: Vec<GateConfig>,
    /// The gates that yield.
    pub keep_if_short: KeepIfShort,
}

impl From<GroupFilter> for GatesConfig {
    /// The published rule as the only gate; no gate if the filter is off.
    fn from(filter: GroupFilter) -> Self {
        let rule = GateRule::Variance { metric: filter.metric, tolerance: 0.0 };
        let gates = if filter.enable { vec![GateConfig { name: None, rule }] } else { Vec::new() };
        Self { gates, keep_if_short: KeepIfShort::default() }
    }
}

/// The groups that a gate has counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GateCounts {
    /// The name of the gate.
    pub name: Arc<str>,
    /// Groups that the gate checked.
    pub seen: u64,
    /// Groups that it passed; another gate may have rejected them.
    pub passed: u64,
    /// Groups that it rejected.
    pub rejected: u64,
    /// Groups whose rejection names this gate and that the caller accepted after all.
    pub kept: u64,
}

impl GateCounts {
    /// Checks the sums: a gate passes or rejects each group, and only a rejected group can be kept.
    pub fn add_up(&self) -> Result<(), Violation> {
        let Self { name, seen, passed, rejected, kept } = self;
        if *seen == passed + rejected && kept <= rejected {
            return Ok(());
        }
        Err(Violation(format!("gate={name} seen={seen} passed={passed} rejected={rejected} kept={kept}")))
    }
}

/// The name and the counters of a gate.
struct Counted {
    name: Arc<str>,
    yields: bool,
    passed: AtomicU64,
    rejected: AtomicU64,
    kept: AtomicU64,
}

impl Counted {
    fn passed(&self, is_counted: bool) {
        self.passed.fetch_add(is_counted.into(), Ordering::Relaxed);
    }

    fn rejected(&self, is_counted: bool) {
        self.rejected.fetch_add(is_counted.into(), Ordering::Relaxed);
    }

    fn rejection(&self, reason: &'static str, value: f64) -> Rejection {
        Rejection { gate: Arc::clone(&self.name), reason, value, yields: self.yields }
    }

    /// A copy of the gate with counters that start at zero.
    fn afresh(&self) -> Self {
        let zero = || AtomicU64::new(0);
        let name = Arc::clone(&self.name);
        Self { name, yields: self.yields, passed: zero(), rejected: zero(), kept: zero() }
    }

    fn counts(&self) -> GateCounts {
        // `kept` is read before `rejected`, so it cannot exceed `rejected`.
        let kept = self.kept.load(Ordering::Acquire);
        let (passed, rejected) = (self.passed.load(Ordering::Relaxed), self.rejected.load(Ordering::Relaxed));
        GateCounts { name: Arc::clone(&self.name), seen: passed + rejected, passed, rejected, kept }
    }
}

struct Named {
    counted: Counted,
    gate: Arc<dyn Gate>,
}

/// The gates of a run, with their counters.
#[derive(Default)]
pub struct Gates {
    gates: Vec<Named>,
    outside: Vec<Outside>,
    samples_min: Option<usize>,
    /// The metric and the tolerance of each `variance` gate.
    variances: Vec<(FilterMetric, f64)>,
}

impl fmt::Debug for Gates {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.all().map(|gate| &gate.name)).finish()
    }
}

impl Gates {
    /// Builds the gates. An error names the gate and the expected value.
    pub fn new(config: &GatesConfig) -> Result<Self, RewardError> {
        let mut gates = Self::default();
        let yielding = &config.keep_if_short.gates;
        for gate in &config.gates {
            let (called, rule) = (gate.called(), &gate.rule);
            rule.check_options()?;
            let yields = yielding.iter().any(|name| name == called);
            gates.push(called, Box::new(rule.clone()), yields)?;
            if let GateRule::MinSamples { samples } = rule {
                gates.samples_min = gates.samples_min.max(Some(*samples));
            }
            if let GateRule::Variance { metric, tolerance } = rule {
                gates.variances.push((*metric, *tolerance));
            }
        }
        let unknown = yielding.iter().find(|name| !gates.all().any(|gate| *gate.name == ***name));
        match unknown {
            Some(name) => Err(RewardError::invalid(
                "keep_if_short gate",
                name,
                "expected the name of a gate in the list",
            )),
            None => Ok(gates),
        }
    }

    /// Returns a copy of the gates that counts separately, from zero.
    pub fn with_own_counts(&self) -> Self {
        let gates = self.gates.iter();
        let outside = self.outside.iter();
        Self {
            gates: gates
                .map(|Named { counted, gate }| Named { counted: counted.afresh(), gate: Arc::clone(gate) })
                .collect(),
            outside: outside
                .map(|Outside { counted, runner }| Outside {
                    counted: counted.afresh(),
                    runner: Arc::clone(runner),
                })
                .collect(),
            samples_min: self.samples_min,
            variances: self.variances.clone(),
        }
    }

    /// Adds the counts of `own`, a copy that [`Self::with_own_counts`] has made of these gates.
    pub fn add_counts(&self, own: &Self) {
        for (gate, own) in self.all().zip(own.all()) {
            let GateCounts { passed, rejected, kept, .. } = own.counts();
            gate.passed.fetch_add(passed, Ordering::Relaxed);
            gate.rejected.fetch_add(rejected, Ordering::Relaxed);
            gate.kept.fetch_add(kept, Ordering::Release);
        }
    }

    /// The number of valid samples that the `min_samples` gates require of a group. The other samples may
    /// have failed. `None` without such a gate.
    pub fn samples_min(&self) -> Option<usize> {
        self.samples_min
    }

    /// Appends a gate. `yields` tells whether it yields as in [`KeepIfShort`].
    pub fn push(&mut self, name: &str, gate: Box<dyn Gate>, yields: bool) -> Result<(), RewardError> {
        let counted = self.counted(name, yields)?;
        self.gates.push(Named { counted, gate: gate.into() });
        Ok(())
    }

    fn counted(&self, name: &str, yields: bool) -> Result<Counted, RewardError> {
        let invalid = |reason: String| Err(RewardError::invalid("gate", name, reason));
        if name.is_empty() || name.len() > GATE_NAME_BYTES_MAX {
            return invalid(format!("expected a name of 1 to {GATE_NAME_BYTES_MAX} bytes"));
        }
        if self.all().any(|other| &*other.name == name) {
            return invalid("expected a name that no other gate has".to_owned());
        }
        if self.all().count() == GATES_MAX {
            return invalid(format!("expected at most {GATES_MAX} gates"));
        }
        let zero = || AtomicU64::new(0);
        Ok(Counted { name: name.into(), yields, passed: zero(), rejected: zero(), kept: zero() })
    }

    fn all(&self) -> impl Iterator<Item = &Counted> {
        let outside = self.outside.iter().map(|outside| &outside.counted);
        self.gates.iter().map(|gate| &gate.counted).chain(outside)
    }

    /// Checks the group with every gate and counts the results, unless an earlier process has counted them.
    /// Outside gates are not asked.
    pub fn check(&self, group: &GroupView<'_>, is_counted: bool) -> Result<(), Rejection> {
        debug_assert!(group.is_even(), "the lists of a group differ in length");
        let (mut hard, mut soft) = (None, None);
        for Named { counted, gate } in &self.gates {
            let Err(refusal) = gate.check(group) else {
                counted.passed(is_counted);
                continue;
            };
            counted.rejected(is_counted);
            let first = if counted.yields { &mut soft } else { &mut hard };
            first.get_or_insert((counted, refusal));
        }
        let Some((counted, Refusal { reason, value })) = hard.or(soft) else { return Ok(()) };
        Err(counted.rejection(reason, value))
    }

    /// Counts a rejected group that the caller accepted after all. A rejection that does not yield, or that
    /// comes from the gates of another run, is not counted.
    pub fn kept_if_short(&self, rejection: &Rejection) {
        let yielding = self.all().find(|gate| gate.yields && gate.name == rejection.gate);
        if let Some(gate) = yielding {
            gate.kept.fetch_add(1, Ordering::Release);
        }
    }

    /// Adds the counts of an earlier process to the gate with this name. Counts of a gate that the run no
    /// longer has are ignored.
    pub fn go_on(&self, name: &str, passed: u64, rejected: u64, kept: u64) {
        if let Some(gate) = self.all().find(|gate| &*gate.name == name) {
            gate.passed.fetch_add(passed, Ordering::Relaxed);
            gate.rejected.fetch_add(rejected, Ordering::Relaxed);
            gate.kept.fetch_add(kept, Ordering::Release);
        }
    }

    /// The counters of all gates in the order of the list, with the outside gates last. If a group is checked
    /// at the same time, only some gates may have counted it.
    pub fn counts(&self) -> Vec<GateCounts> {
        self.all().map(Counted::counts).collect()
    }
}

#[cfg(test)]
mod tests;
