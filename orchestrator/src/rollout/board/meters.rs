//! The measurements of a run that its ledger stores.

use std::sync::Arc;

use rolldock_ledger::{GateRecord, MetersRecord};

use super::Board;
use crate::data::DrawCounts;
use crate::rollout::accept_rate::AcceptRate;

/// The measurements that neither the gates nor the launch store.
#[derive(Debug, Default)]
pub(super) struct Meters {
    /// The counts of the data source when it returned the last prompt that was sent out. Prompts that were
    /// drawn later are not counted yet. If they are not sent out, the next process draws them again and
    /// counts them.
    drawn: DrawCounts,
    written: Option<MetersRecord>,
}

impl Board {
    /// Writes the measurements to the ledger if they have changed.
    pub(super) fn note_meters(&mut self) {
        if !self.dispatches.keeps_journal() {
            return;
        }
        let gates = self.config.gates.counts().into_iter();
        let record = MetersRecord {
            accept_rate: self.outlook.others().to_bits(),
            overlong_dropped: self.meters.drawn.overlong_dropped,
            overlong_truncated: self.meters.drawn.overlong_truncated,
            gates: gates
                .map(|gate| GateRecord {
                    name: Arc::clone(&gate.name),
                    passed: gate.passed,
                    rejected: gate.rejected,
                    kept: gate.kept,
                })
                .collect(),
        };
        if self.meters.written.as_ref() != Some(&record) {
            self.dispatches.note_meters(&record);
            self.meters.written = Some(record);
        }
    }

    /// Notes the counts of the data source when it returned the prompt that is sent out now.
    pub(super) fn note_drawn(&mut self, counts: Option<DrawCounts>) {
        let Some(counts) = counts else { return };
        let before = std::mem::replace(&mut self.meters.drawn, counts);
        if before.overlong_dropped != counts.overlong_dropped
            || before.overlong_truncated != counts.overlong_truncated
        {
            self.note_meters();
        }
    }

    /// Writes the evidence for launch decisions to the ledger. The evidence is written only once or twice per
    /// step, because it is longer than the other measurements.
    pub(super) fn note_outlook(&self) {
        self.dispatches.note_outlook(|| self.outlook.to_bits().into());
    }

    /// Continues from the measurements of an earlier process.
    pub(super) fn restore_meters(&mut self, measured: MetersRecord, outlook: Option<&[u64]>) {
        self.outlook.restore(AcceptRate::from_bits(measured.accept_rate), outlook.unwrap_or_default());
        self.meters.drawn.overlong_dropped = measured.overlong_dropped;
        self.meters.drawn.overlong_truncated = measured.overlong_truncated;
        for GateRecord { name, passed, rejected, kept } in measured.gates {
            self.config.gates.go_on(&name, passed, rejected, kept);
        }
    }
}
