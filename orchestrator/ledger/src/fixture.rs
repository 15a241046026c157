//! Records for tests.

use rolldock_dispatch::{CarriedSample, DispatchId, FinishReason, Position, PromptUid, Spent, VersionSpan};

use super::{DispatchRecord, FORMAT, KeptGroup, LifeRecord, Record, RunRecord, StepRecord};

pub(super) fn run() -> Record {
    Record::Run(RunRecord { run_id: "rd1".to_owned(), started_s: 1_700_000_000, format: FORMAT })
}

pub(super) fn life(number: u32) -> Record {
    Record::Life(LifeRecord { number, pid: 42, started_s: 1_700_000_000 })
}

pub(super) fn step(step: u64) -> Record {
    Record::Step(StepRecord { step, target: 4, policy_version: step })
}

/// The first dispatch of a prompt. The row and the number of the prompt are equal.
pub(super) fn dispatched(id: u64, number: u64, step: u64) -> DispatchRecord {
    DispatchRecord {
        id: DispatchId(id),
        number,
        parent: None,
        prompt_uid: PromptUid(0xabc0_0000_0000_0000 + number),
        row: number,
        visit: 0,
        step,
        policy_version: step,
        first_attempt: 0,
        returns: 0,
        drawn_to: Some(Position { epoch: 0, offset: number + 1 }),
        chance: None,
    }
}

pub(super) fn dispatch(id: u64, number: u64, step: u64) -> Record {
    Record::Dispatch(dispatched(id, number, step))
}

/// A later dispatch of a prompt.
pub(super) fn continued(id: u64, parent: u64, number: u64, step: u64) -> Record {
    let parent = Some(DispatchId(parent));
    Record::Dispatch(DispatchRecord { parent, drawn_to: None, ..dispatched(id, number, step) })
}

pub(super) fn carried(number: u64, parent: u64) -> KeptGroup {
    let sample = |index: u32| CarriedSample {
        index,
        attempt: 1,
        segments: 2,
        response_ids: vec![7, u32::MAX, index],
        logprobs: vec![-0.5, -1.25, 0.0],
        version_spans: vec![
            VersionSpan { version: "default".into(), start: 0, end: 1 },
            VersionSpan { version: "step-3".into(), start: 1, end: 3 },
        ],
        finish_reason: [None, Some(FinishReason::Stop), Some(FinishReason::Length)][index as usize % 3],
        policy_version_min: 3,
        policy_version_max: u64::MAX,
        versions_reported: index == 1,
        spent: Spent::default(),
    };
    KeptGroup { number, parent: DispatchId(parent), samples: (0..3).map(sample).collect() }
}
