//! Compares the bias meter at the end of the second life with the groups that both lives accepted.
//!
//! The meter's state comes from the ledger's records of decisions. The truth is computed from the groups and
//! from the step that sent out each number, and shares no code with the meter.

use std::collections::BTreeMap;
use std::path::Path;

use rolldock::dispatch::bias::BiasReading;
use rolldock::ledger::{Record, read_log};

/// The response tokens and the samples of accepted groups, by number.
pub(super) type Accepted = BTreeMap<u64, (u64, usize)>;

/// Compares the mean length of accepted responses. Returns the number of steps that the meter covers, or 0 if
/// it has no figures.
pub(super) fn compare(reading: &BiasReading, accepted: &Accepted, ledger: &Path) -> anyhow::Result<u64> {
    let (Some((first, last)), Some(length)) = (reading.steps, reading.length) else { return Ok(0) };
    anyhow::ensure!(first == 1, "the figures begin with step {first}: the first life is lost");
    let (mut tokens, mut samples) = (0, 0);
    read_log(ledger, |_, record| {
        if let Record::Dispatch(dispatch) = record
            && dispatch.parent.is_none()
            && (first..=last).contains(&dispatch.step)
            && let Some((of_group, count)) = accepted.get(&dispatch.number)
        {
            tokens += of_group;
            samples += count;
        }
        Ok(())
    })?;
    let truth = tokens as f64 / samples as f64;
    anyhow::ensure!(
        length.accepted == truth,
        "the meter has {} tokens in an accepted response of the steps {first} to {last}, the groups {truth}",
        length.accepted
    );
    Ok(last)
}
