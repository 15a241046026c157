//! A run of several lives, each of which is killed at a random place. The next life must continue correctly.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::codec::{Encoder, encode};
use crate::frame::FORMAT;
use crate::{DispatchRecord, TokensPlace, ledger_file};

/// The files that survive a crash.
struct World {
    log: Vec<u8>,
    /// The records in the queue, in order of the puts.
    queue: Vec<QueueRecord>,
    /// The records that the queue has forgotten.
    forgotten: Vec<QueueRecord>,
}

/// A life: the files, and the state of the process in memory.
struct Life {
    world: World,
    state: LedgerState,
    /// The offset at which the frame of each dispatch ends.
    ends_at: BTreeMap<DispatchId, usize>,
    /// Accepted dispatches whose rows are not put yet, with the step for which they count.
    due: Vec<(DispatchRecord, u64)>,
    /// The log must survive up to this length, because this part settles records that the queue has
    /// forgotten.
    settled_at: usize,
}

impl Life {
    fn append(&mut self, record: Record) {
        self.state.apply(&record).unwrap();
        let mut body = Encoder::default();
        encode(&record, &mut body);
        self.world.log.extend(FORMAT.frame(&body.0).unwrap());
        if let Record::Dispatch(dispatch) = &record {
            self.ends_at.insert(dispatch.id, self.world.log.len());
        }
    }

    fn act(&mut self, action: u8, pick: u8) {
        let step = self.state.current_step();
        let (id, number) = (self.state.next_id, self.state.next_number);
        match action % 8 {
            0 | 1 => self.append(fixture::dispatch(id, number, step)),
            2 => {
                let Some(queued) = self.state.queued.values().next().cloned() else { return };
                self.append(Record::Dispatch(DispatchRecord {
                    parent: Some(queued.parent),
                    first_attempt: queued.first_attempt,
                    drawn_to: None,
                    ..fixture::dispatched(id, queued.number, step)
                }));
            }
            3 | 4 => self.end(pick),
            5 => self.put(),
            6 => self.settle(),
            _ => {
                self.append(Record::StepEnd(StepEndRecord { step, end: StepEnd::Reached }));
                let goes_on = self.state.steps().iter().find(|(_, step)| step.end.is_none());
                let next = goes_on.map_or(self.state.last_step() + 1, |(number, _)| *number);
                self.append(fixture::step(next));
            }
        }
    }

    fn end(&mut self, pick: u8) {
        let open: Vec<DispatchRecord> = self.state.open().cloned().collect();
        let Some(dispatch) = open.get(pick as usize % open.len().max(1)).cloned() else { return };
        let id = dispatch.id;
        let place = TokensPlace { file: dispatch.step, offset: id.0, length: 1 };
        match pick % 9 {
            0..=3 => {
                self.append(Record::end(id, Fate::Accepted));
                self.due.push((dispatch, self.state.current_step()));
            }
            4 => self.append(Record::end(id, Fate::Filtered("no_variance"))),
            5 => self.append(Record::end(id, Fate::Requeued)),
            6 => self.append(Record::End { id, fate: Fate::Carried, next: Next::From(place) }),
            7 => self.append(Record::end_anew(id, Fate::Stale, dispatch.first_attempt + 1)),
            _ => self.append(Record::end(id, Fate::Failed("lost".to_owned()))),
        }
    }

    fn put(&mut self) {
        if self.due.is_empty() {
            return;
        }
        let (DispatchRecord { id, number, prompt_uid, .. }, step) = self.due.remove(0);
        self.world.queue.push(QueueRecord::new(id, number, step, prompt_uid));
    }

    /// Settles the dispatches that were put. Then the queue forgets its oldest records.
    fn settle(&mut self) {
        let there: BTreeSet<u64> = self.world.queue.iter().map(|record| record.dispatch).collect();
        let ids: Vec<DispatchId> =
            self.state.accepted().map(|dispatch| dispatch.id).filter(|id| there.contains(&id.0)).collect();
        if ids.is_empty() {
            return;
        }
        self.append(Record::Settled { ids });
        self.settled_at = self.world.log.len();
        let oldest = self.world.queue.drain(..there.len() / 2).collect::<Vec<_>>();
        self.world.forgotten.extend(oldest);
    }

    /// Kills the process. The last puts are lost unless they are settled. The log is cut at a random place
    /// after the records that the queue's records depend on.
    fn crash(self, lost_puts: u8, cut: u16) -> World {
        let mut world = self.world;
        for _ in 0..lost_puts % 4 {
            // The put of a settled dispatch was acknowledged, so it cannot be lost.
            let is_lost =
                |record: &QueueRecord| self.state.accepted.contains_key(&DispatchId(record.dispatch));
            if world.queue.last().is_some_and(is_lost) {
                world.queue.pop();
            }
        }
        let stands_on =
            world.queue.iter().filter_map(|record| self.ends_at.get(&DispatchId(record.dispatch)));
        let kept = stands_on.copied().chain([self.settled_at]).max().unwrap_or(0);
        let length = kept + usize::from(cut) % (world.log.len() - kept + 1);
        world.log.truncate(length);
        world
    }
}

/// Reads the log, as a new process does.
fn read(dir: &std::path::Path, log: &[u8]) -> (LedgerState, Vec<Record>, u64) {
    std::fs::write(ledger_file(dir), log).unwrap();
    let mut records = Vec::new();
    let end = crate::read_log(dir, |_, record| {
        records.push(record);
        Ok(())
    })
    .unwrap();
    let (state, again) = LedgerState::read(dir).unwrap();
    assert_eq!(end, again);
    (state, records, end.sound_bytes)
}

/// The unfinished numbers and the last position in the data, computed from the records and the queue alone.
fn expected(records: &[Record], accepted: &BTreeSet<u64>) -> (BTreeSet<u64>, Option<u64>) {
    let mut number_of = BTreeMap::new();
    let mut unfinished = BTreeSet::new();
    let mut last_new = None;
    for record in records {
        match record {
            Record::Dispatch(dispatch) => {
                number_of.insert(dispatch.id, dispatch.number);
                unfinished.insert(dispatch.number);
                last_new = last_new.max(dispatch.drawn_to.map(|position| position.offset));
            }
            Record::End { id, fate, next: Next::Nothing } if *fate != Fate::Accepted => {
                unfinished.remove(&number_of[id]);
            }
            _ => {}
        }
    }
    (unfinished.difference(accepted).copied().collect(), last_new)
}

fn check(world: &World, records: &[Record], state: &LedgerState, resumed: &Resumption) {
    let all: Vec<u64> = world.queue.iter().chain(&world.forgotten).map(|record| record.number).collect();
    let accepted: BTreeSet<u64> = all.iter().copied().collect();
    assert_eq!(accepted.len(), all.len(), "a number was accepted twice: {all:?}");
    assert_eq!(resumed.run_totals.accepted as usize, all.len(), "what is accepted is what the queue had");
    let (unfinished, last_new) = expected(records, &accepted);
    let queued: Vec<u64> = resumed.queued.iter().map(|queued| queued.number).collect();
    assert_eq!(queued, unfinished.into_iter().collect::<Vec<_>>(), "each unfinished number once");
    assert_eq!(resumed.position.map(|position| position.offset), last_new);
    assert_eq!(resumed.run_totals.in_flight, 0);
    let of_steps =
        |count: fn(&Totals) -> u64| state.steps().values().map(|step| count(&step.totals)).sum::<u64>();
    assert_eq!(of_steps(|totals| totals.accepted), resumed.run_totals.accepted);
    assert_eq!(of_steps(|totals| totals.dispatched), resumed.run_totals.dispatched);
    state.check().unwrap();
}

fn resume(world: World, dir: &std::path::Path, crash_at: u8) -> Life {
    let (mut state, records, sound) = read(dir, &world.log);
    let mut life = Life {
        world,
        state: LedgerState::default(),
        ends_at: BTreeMap::new(),
        due: Vec::new(),
        settled_at: sound as usize,
    };
    life.world.log.truncate(sound as usize);
    if life.world.log.is_empty() {
        life.world.log.extend(FORMAT.magic);
    }
    if state.run().is_none() {
        life.append(fixture::run());
        life.append(fixture::life(1));
        life.append(fixture::step(1));
        return life;
    }
    life.state = state.clone();
    let resumed = state.reconcile(&life.world.queue).unwrap();
    check(&life.world, &records, &state, &resumed);

    // The first process dies while it resumes, and a second one resumes.
    let written = crash_at as usize % (resumed.records.len() + 1);
    for record in &resumed.records[..written] {
        life.append(record.clone());
    }
    let mut second = life.state.clone();
    let resumed_again = second.reconcile(&life.world.queue).unwrap();
    assert_eq!(second, state, "the second process comes to the same state");
    assert_eq!(
        Resumption { records: Vec::new(), ..resumed_again.clone() },
        Resumption { records: Vec::new(), ..resumed }
    );
    for record in &resumed_again.records {
        life.append(record.clone());
    }
    let third = life.state.clone().reconcile(&life.world.queue).unwrap();
    assert_eq!(third.records, [], "nothing is left to decide");
    // Now the queue may forget all of its records.
    life.settled_at = life.world.log.len();
    if crash_at.is_multiple_of(2) {
        let all = std::mem::take(&mut life.world.queue);
        life.world.forgotten.extend(all);
    }
    life.append(fixture::life(resumed_again.life));
    let goes_on = resumed_again.open_steps.first().map_or(resumed_again.last_step + 1, |step| step.step);
    life.append(fixture::step(goes_on));
    life
}

type Acts = Vec<(u8, u8)>;

proptest! {
    #[test]
    fn whatever_is_cut_off_the_next_life_continues(
        lives in prop::collection::vec(
            (prop::collection::vec(any::<(u8, u8)>(), 0..80), any::<u8>(), any::<u16>(), any::<u8>()),
            1..5,
        ),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut world = World { log: Vec::new(), queue: Vec::new(), forgotten: Vec::new() };
        let lives: Vec<(Acts, u8, u16, u8)> = lives;
        for (acts, lost_puts, cut, crash_at) in lives {
            let mut life = resume(world, dir.path(), crash_at);
            for (action, pick) in acts {
                life.act(action, pick);
            }
            world = life.crash(lost_puts, cut);
        }
        resume(world, dir.path(), 0);
    }
}
