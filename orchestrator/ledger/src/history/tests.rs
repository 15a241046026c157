#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use super::*;
use crate::{LedgerConfig, LedgerWriter, fixture};

#[test]
fn a_prompt_is_followed_over_its_dispatches() {
    let dir = tempfile::tempdir().unwrap();
    let config = LedgerConfig { fsync: false, inline: true, full_disk_wait: std::time::Duration::ZERO };
    let writer = LedgerWriter::open(dir.path(), config).unwrap().writer;
    let failed = |id, reason: &str| Record::end(DispatchId(id), Fate::Failed(reason.to_owned()));
    let records = [
        fixture::run(),
        fixture::life(1),
        fixture::step(1),
        fixture::dispatch(0, 0, 1),
        fixture::dispatch(1, 1, 1),
        Record::end(DispatchId(0), Fate::Accepted),
        Record::end(DispatchId(0), Fate::Requeued),
        fixture::continued(2, 0, 0, 1),
        fixture::dispatch(3, 3, 1),
        fixture::dispatch(4, 4, 1),
        failed(1, "server=b was lost"),
        failed(3, "a reward said no"),
        failed(4, "server=b was lost"),
    ];
    for record in records {
        writer.append(record);
    }
    let history = History::read(dir.path(), |dispatch, _| dispatch.row == 0).unwrap();
    let lines: Vec<_> = history
        .dispatches
        .iter()
        .map(|line| (line.dispatch.id.0, line.dispatch.parent, line.fate.clone(), line.is_taken_back))
        .collect();
    assert_eq!(lines, [(0, None, Some(Fate::Requeued), true), (2, Some(DispatchId(0)), None, false)]);
    assert_eq!(history.state.totals().failed, 3);
    assert_eq!(history.failures(), []);
    let step = History::read(dir.path(), |_, ended_in| ended_in == Some(1)).unwrap();
    assert_eq!(step.failures(), [("server=b was lost", 2), ("a reward said no", 1)]);
    assert_eq!(writer.error(), None);
}
