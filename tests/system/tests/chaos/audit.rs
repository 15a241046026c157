//! The rules that must hold under every fault. The checks use an account that only the clients keep, and
//! whose code shares nothing with the code of the system.
//!
//! - Every group that the trainer gets is complete, has the columns of its own rows, and is within the bounds
//!   of the recipe.
//! - A group whose ack was confirmed is never delivered again, and no other group of its prompt is delivered
//!   instead.
//! - At the end, the trainer has trained on every group that the run's ledger calls accepted.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;

use crate::layout::{RESPONSE_MAX, SAMPLES};

/// A row as the trainer reads it.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) group: String,
    pub(crate) prompt: String,
    pub(crate) sample: u32,
    pub(crate) response: Vec<u32>,
    pub(crate) logprobs: Vec<f32>,
    pub(crate) reference: Vec<f32>,
    pub(crate) version_min: u64,
    pub(crate) version_max: u64,
}

/// The groups of a lease, each with its prompt.
#[derive(Debug, Clone)]
pub(crate) struct Batch {
    pub(crate) lease: String,
    pub(crate) groups: Vec<(String, String)>,
}

/// The column that the reference worker writes for a response: one number for each token, a function of the
/// token.
pub(crate) fn reference_of(response: &[u32]) -> Vec<f32> {
    response.iter().map(|token| -((token % 97) as f32) / 8.0).collect()
}

#[derive(Debug, Default)]
struct Account {
    /// The prompt of each group that was trained on.
    trained: BTreeMap<String, String>,
    /// The groups whose ack the run's queue has confirmed.
    referenced: BTreeSet<String>,
    /// The batch that the trainer has taken and not settled. A restarted trainer reads the batch from this
    /// field, which represents its checkpoint.
    open: Option<Batch>,
    /// The newest version that the trainer has tried to announce.
    announced: u64,
    violations: Vec<String>,
}

/// The account of both clients.
#[derive(Debug, Default)]
pub(crate) struct Audit(Mutex<Account>);

impl Audit {
    /// Checks rows that the trainer has taken, and opens a batch.
    pub(crate) fn taken(&self, lease: String, rows: &[Row]) -> Batch {
        let mut account = self.0.lock();
        let mut groups: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
        rows.iter().for_each(|row| groups.entry(&row.group).or_default().push(row));
        for (group, rows) in &groups {
            let wrong = account.check_group(group, rows);
            account
                .violations
                .extend(wrong.into_iter().map(|what| format!("lease={lease} group={group}: {what}")));
        }
        let named = groups.into_iter().map(|(group, rows)| (group.to_owned(), rows[0].prompt.clone()));
        let batch = Batch { lease, groups: named.collect() };
        account.open = Some(batch.clone());
        batch
    }

    /// Records a confirmed ack.
    pub(crate) fn trained(&self, batch: Batch) {
        let mut account = self.0.lock();
        account.trained.extend(batch.groups);
        account.open = None;
    }

    /// Records that the lease of the open batch has ended without an ack, so that its rows are delivered again.
    pub(crate) fn given_back(&self) {
        self.0.lock().open = None;
    }

    /// The batch that the trainer held when it was killed.
    pub(crate) fn open_batch(&self) -> Option<Batch> {
        self.0.lock().open.clone()
    }

    /// Checks groups that the reference worker has taken from the run's queue.
    pub(crate) fn reference_takes<'a>(&self, groups: impl IntoIterator<Item = &'a String>) {
        let mut account = self.0.lock();
        for group in groups {
            if account.referenced.contains(group) {
                account.violations.push(format!("group={group}: the run's queue gives it after its ack"));
            }
        }
    }

    /// Records a confirmed ack of the run's queue.
    pub(crate) fn referenced(&self, groups: impl IntoIterator<Item = String>) {
        self.0.lock().referenced.extend(groups);
    }

    /// The version that the trainer announces after the groups that it has trained on.
    pub(crate) fn next_version(&self, step_groups: usize) -> u64 {
        let mut account = self.0.lock();
        let version = (account.trained.len() / step_groups) as u64;
        account.announced = account.announced.max(version);
        version
    }

    /// The number of groups that were trained on.
    pub(crate) fn trained_count(&self) -> usize {
        self.0.lock().trained.len()
    }

    /// Records a violation that a client has found.
    pub(crate) fn violation(&self, what: String) {
        self.0.lock().violations.push(what);
    }

    /// All violations so far.
    pub(crate) fn violations(&self) -> Vec<String> {
        self.0.lock().violations.clone()
    }

    /// The greatest number of groups of one prompt that were trained on.
    pub(crate) fn prompt_repeats(&self) -> usize {
        let account = self.0.lock();
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        account.trained.values().for_each(|prompt| *counts.entry(prompt).or_default() += 1);
        counts.into_values().max().unwrap_or(0)
    }
}

impl Account {
    /// All errors in the rows of a group.
    fn check_group(&self, group: &str, rows: &[&Row]) -> Vec<String> {
        let mut wrong = Vec::new();
        if self.trained.contains_key(group) {
            wrong.push("it is given after its ack".to_owned());
        }
        let samples: BTreeSet<u32> = rows.iter().map(|row| row.sample).collect();
        if rows.len() != SAMPLES || samples != (0..SAMPLES as u32).collect() {
            wrong.push(format!("expected samples 0 to {SAMPLES}, found {} rows of {samples:?}", rows.len()));
        }
        if rows.iter().any(|row| row.prompt != rows[0].prompt) {
            wrong.push("its rows have several prompts".to_owned());
        }
        wrong.extend(rows.iter().filter_map(|row| self.check_row(row)));
        wrong
    }

    fn check_row(&self, row: &Row) -> Option<String> {
        let tokens = row.response.len();
        let what = if tokens == 0 || tokens > RESPONSE_MAX {
            format!("expected 1 to {RESPONSE_MAX} tokens, found {tokens}")
        } else if row.logprobs.len() != tokens {
            format!("expected {tokens} log-probabilities, found {}", row.logprobs.len())
        } else if row.reference != reference_of(&row.response) {
            "its reference column is that of another row".to_owned()
        } else if row.version_min > row.version_max || row.version_max > self.announced {
            let (min, max) = (row.version_min, row.version_max);
            format!("versions {min} to {max}, and the newest that was announced is {}", self.announced)
        } else {
            return None;
        };
        Some(format!("sample={}: {what}", row.sample))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(name: &str) -> Vec<Row> {
        let row = |sample| Row {
            group: name.to_owned(),
            prompt: "p".to_owned(),
            sample,
            response: vec![5, 98],
            logprobs: vec![-0.5; 2],
            reference: vec![-0.625, -0.125],
            version_min: 0,
            version_max: 0,
        };
        (0..SAMPLES as u32).map(row).collect()
    }

    /// The violations that a second batch causes after a first batch was trained on.
    fn found(rows: &[Row]) -> Vec<String> {
        let audit = Audit::default();
        let first = audit.taken("1".to_owned(), &group("a"));
        audit.trained(first);
        audit.taken("2".to_owned(), rows);
        audit.violations()
    }

    #[test]
    fn every_kind_of_violation_is_found() {
        assert_eq!(found(&group("b")), Vec::<String>::new());
        let says = |rows: &[Row], words: &str| {
            let found = found(rows);
            assert!(found.len() == 1 && found[0].contains(words), "expected {words:?}, found {found:?}");
        };
        says(&group("a"), "after its ack");
        says(&group("b")[1..], "found 3 rows");
        says(&[group("b"), group("b")].concat(), "found 8 rows");
        let changed = |change: fn(&mut Row)| {
            let mut rows = group("b");
            change(&mut rows[2]);
            rows
        };
        says(&changed(|row| row.prompt = "q".to_owned()), "several prompts");
        says(&changed(|row| row.response.clear()), "found 0");
        says(&changed(|row| row.logprobs.clear()), "log-probabilities");
        says(&changed(|row| row.reference[1] = 0.0), "another row");
        says(&changed(|row| row.version_max = 1), "announced is 0");
    }
}
