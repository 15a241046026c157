//! Checks that every error has a documented code.

use std::collections::BTreeMap;

use rolldock_queue::QueueError;

use super::code;

/// One error of each variant. The test fails to compile until a new variant is listed here.
fn all_errors() -> Vec<QueueError> {
    let text = || "x".to_owned();
    let all = vec![
        QueueError::InUse { dir: "x".into(), owner: text() },
        QueueError::NoQueue { dir: "x".into() },
        QueueError::JournalMissing { journal: "x".into(), found: text() },
        QueueError::JournalCut { file: "x".into(), bytes: 1, bytes_missing: 2, records_missing: 3 },
        QueueError::UnknownPartition { name: text() },
        QueueError::PartitionExists { name: text() },
        QueueError::BadSnapshot { offset: 1, reason: text() },
        QueueError::UnknownTask { partition: text(), task: text(), tasks: text() },
        QueueError::UnknownColumn { partition: text(), column: text() },
        QueueError::DeclaredOtherwise { name: text(), what: text() },
        QueueError::WrongType { column: text(), expected: text(), found: text() },
        QueueError::ColumnExists { column: text() },
        QueueError::ColumnMissing { column: text() },
        QueueError::GroupOverflow { group: text(), size: 1, rows: 2 },
        QueueError::TooLarge { rows: 2, capacity: 1 },
        QueueError::Full { partition: text(), capacity: 1 },
        QueueError::DiskFull { dir: "x".into(), reason: text() },
        QueueError::OutOfFiles { what: "x".into(), path: "x".into(), reason: text() },
        QueueError::KeyExists { key: text() },
        QueueError::UnknownKey { partition: text(), key: text() },
        QueueError::RowTooLong { row: 1, bytes: 2, bytes_max: 1 },
        QueueError::TooManyBytes { bytes: 2, capacity_bytes: 1 },
        QueueError::RowConsumed { task: text(), slot: 1, generation: 1 },
        QueueError::GroupClosed { group: text() },
        QueueError::SampleClosed { sample: text() },
        QueueError::UnknownSample { partition: text(), sample: text() },
        QueueError::StepDiffers { trajectory: text(), step: 1 },
        QueueError::RecordsFull { partition: text(), bytes: 2, bytes_max: 1 },
        QueueError::ChunkGone { chunk: 1 },
        QueueError::Deadline { what: "x".into(), partition: text(), state: text() },
        QueueError::StaleHandle { slot: 1, generation: 1 },
        QueueError::LeaseGone { lease: 1 },
        QueueError::Closed { partition: text() },
        QueueError::Empty,
        QueueError::ReadOnly,
        QueueError::Corrupt { file: "x".into(), offset: 1, reason: text() },
        QueueError::Io { what: "x".into(), path: "x".into(), reason: text() },
        QueueError::BadRequest { reason: text() },
        QueueError::UnknownPath { path: text() },
        QueueError::WrongMethod { method: text(), path: text() },
        QueueError::BodyTooLarge { bytes_max: 1 },
        QueueError::Unauthorized,
        QueueError::UnknownUnit { unit: text() },
        QueueError::UnitAway { unit: text() },
        QueueError::Stopping,
        QueueError::Unreachable { url: text(), reason: text() },
        QueueError::Arrow { reason: text() },
    ];
    for error in &all {
        match error {
            QueueError::InUse { .. }
            | QueueError::NoQueue { .. }
            | QueueError::JournalMissing { .. }
            | QueueError::JournalCut { .. }
            | QueueError::UnknownPartition { .. }
            | QueueError::PartitionExists { .. }
            | QueueError::BadSnapshot { .. }
            | QueueError::UnknownTask { .. }
            | QueueError::UnknownColumn { .. }
            | QueueError::DeclaredOtherwise { .. }
            | QueueError::WrongType { .. }
            | QueueError::ColumnExists { .. }
            | QueueError::ColumnMissing { .. }
            | QueueError::GroupOverflow { .. }
            | QueueError::TooLarge { .. }
            | QueueError::Full { .. }
            | QueueError::DiskFull { .. }
            | QueueError::OutOfFiles { .. }
            | QueueError::KeyExists { .. }
            | QueueError::UnknownKey { .. }
            | QueueError::RowTooLong { .. }
            | QueueError::TooManyBytes { .. }
            | QueueError::RowConsumed { .. }
            | QueueError::GroupClosed { .. }
            | QueueError::SampleClosed { .. }
            | QueueError::UnknownSample { .. }
            | QueueError::StepDiffers { .. }
            | QueueError::RecordsFull { .. }
            | QueueError::ChunkGone { .. }
            | QueueError::Deadline { .. }
            | QueueError::StaleHandle { .. }
            | QueueError::LeaseGone { .. }
            | QueueError::Closed { .. }
            | QueueError::Empty
            | QueueError::ReadOnly
            | QueueError::Corrupt { .. }
            | QueueError::Io { .. }
            | QueueError::BadRequest { .. }
            | QueueError::UnknownPath { .. }
            | QueueError::WrongMethod { .. }
            | QueueError::BodyTooLarge { .. }
            | QueueError::Unauthorized
            | QueueError::UnknownUnit { .. }
            | QueueError::UnitAway { .. }
            | QueueError::Stopping
            | QueueError::Unreachable { .. }
            | QueueError::Arrow { .. } => {}
        }
    }
    all
}

/// The codes and their HTTP statuses, from the table in `docs/src/queue-operations.md`.
fn documented() -> BTreeMap<String, String> {
    let page = include_str!("../../../docs/src/queue-operations.md");
    let (_, section) = page.split_once("## Errors").unwrap();
    let rows = section.lines().filter_map(|line| {
        let cell = line.strip_prefix("| ")?.split(" | ").nth(1)?;
        let (code, status) = cell.strip_prefix('`')?.split_once("`, ")?;
        Some((code.to_owned(), status.to_owned()))
    });
    rows.collect()
}

#[test]
fn every_error_has_its_code_in_the_contract_and_on_the_operators_page() {
    let contract: serde_json::Value = serde_json::from_str(include_str!("../../openapi.json")).unwrap();
    let error = &contract["components"]["schemas"]["Error"]["properties"]["error"]["properties"];
    let mut promised: Vec<String> = serde_json::from_value(error["code"]["enum"].clone()).unwrap();
    promised.sort_unstable();
    let mut codes: Vec<String> = all_errors().iter().map(code).collect();
    codes.sort_unstable();
    assert_eq!(codes, promised);
    let documented: Vec<String> = documented().into_keys().collect();
    assert_eq!(codes, documented);
    for error in all_errors() {
        let words = serde_json::to_string(&error).unwrap();
        assert_eq!(serde_json::from_str::<QueueError>(&words).unwrap(), error, "{words}");
    }
}
