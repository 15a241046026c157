//! Boards that continue from the ledger of an earlier process.

use std::path::Path;

use rolldock_dispatch::StepEnd;
use rolldock_ledger::{
    FORMAT, LedgerConfig, LedgerState, LedgerWriter, QueueRecord, Record, RunRecord, read_carried,
};

use super::*;
use crate::rollout::Restored;
use crate::rollout::tokens::Counted;

fn board() -> Board {
    Board::new(config(EarlyStop::Fifo, OnStop::Carry, Launch::Batch))
}

fn restored(dir: &Path, in_queue: &[QueueRecord]) -> Restored {
    let (mut state, _) = LedgerState::read(dir).unwrap();
    let resumption = state.reconcile(in_queue).unwrap();
    let kept = |place| read_carried(dir, place).unwrap();
    let queued = resumption.queued.iter();
    let queued = queued.map(|queued| (queued.clone(), prompt(queued.row), queued.tokens.map(kept)));
    Restored { queued: queued.collect(), resumption }
}

#[test]
fn the_tokens_of_held_groups_are_held_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let config = LedgerConfig { fsync: false, inline: true, full_disk_wait: Duration::ZERO };
    let journal = LedgerWriter::open(dir.path(), config).unwrap().writer;
    journal.append(Record::Run(RunRecord { run_id: "r".to_owned(), started_s: 0, format: FORMAT }));
    let mut first = board();
    first.keep_journal(journal.clone());
    first.begin_step(1, 1);
    let started = run_all(&mut first, &mut 0);
    for dispatch in &started {
        first.dispatches().tokens().generated(dispatch.id, Counted::known(1));
    }
    for held in [2, 1, 0] {
        let ended = &started[held];
        first.end(ended.id, ended.number, GroupEnd::Valid(group(ended, 0)));
    }
    for cut in &started[3..] {
        first.end(cut.id, cut.number, GroupEnd::Carried(carried(cut, 0)));
    }
    first.end_step().unwrap();
    first.note_step_end(1, StepEnd::Reached);
    let before = first.dispatches().tokens().run();
    assert_eq!((before.accepted, before.held), (1, 2), "{before:?}");
    assert_eq!(before.carried, started[3..].len() as u64);
    journal.close().unwrap();

    let put = QueueRecord::new(started[0].id, 0, 1, started[0].prompt.uid);
    let mut second = board();
    assert_eq!(second.restore(restored(dir.path(), &[put])), 1);
    assert_eq!((second.step(), second.is_stopped()), (1, true), "step 1 is over, and step 2 has not begun");
    let tokens = second.dispatches().tokens().run();
    assert_eq!((tokens.held, tokens.carried, tokens.wasted.total()), (2, before.carried, 0));
    second.begin_step(2, 1);
    run_all(&mut second, &mut 100);
    let tokens = second.dispatches().tokens().run();
    assert_eq!((tokens.held, tokens.carried), (0, 0), "they are in flight: {tokens:?}");
    assert_eq!(tokens.in_flight, 2 + before.carried);
}
