use super::*;
use crate::PartitionSpec;
use crate::partition::Dispositions;

fn declaration() -> Record {
    let spec = PartitionSpec::new("p", ["a"], 16);
    Record::Declare { spec, generation_floor: 0, dispositions: Dispositions::default() }
}

fn put() -> Record {
    Record::Put(PutRecord {
        partition: "p".to_owned(),
        group: "g".to_owned(),
        group_size: 1,
        group_gone: 0,
        sample: None,
        policy_version: 0,
        priority: 0,
        lengths: Vec::new(),
        kib: 0,
        labels: Vec::new(),
        rows: vec![RowHandle { slot: 0, generation: 0 }],
        payload: PayloadRecord {
            chunk: ChunkId(0),
            location: None,
            unit: None,
            columns: vec!["id".to_owned()],
            chunk_rows: Vec::new(),
        },
        token: None,
        words: Some("accepted".to_owned()),
    })
}

#[test]
fn a_second_declaration_keeps_what_was_put_under_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let mut replay = Replay::new(Arc::new(DiskStore::new(dir.path())));
    for record in [declaration(), put(), declaration()] {
        replay.apply(record).unwrap();
    }
    let rows: Vec<usize> = replay.into_tables().map(|table| table.rows_live).collect();
    assert_eq!(rows, [1]);
}

#[test]
fn a_record_outlives_its_rows_and_a_rewriting_of_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(DiskStore::new(dir.path()));
    let mut replay = Replay::new(Arc::clone(&store));
    let rows = vec![RowHandle { slot: 0, generation: 0 }];
    let ack = Record::Ack { partition: "p".to_owned(), task: "a".to_owned(), rows, lease: None };
    for record in [declaration(), put(), ack] {
        replay.apply(record).unwrap();
    }
    let table = replay.into_tables().next().unwrap();
    let mut again = Replay::new(Arc::clone(&store));
    for record in live_records(&table, |chunk| (store.location(chunk), None)) {
        again.apply(record).unwrap();
    }
    let table = again.into_tables().next().unwrap();
    assert_eq!((table.rows_live, table.dispositions.acked), (0, 1));
    assert_eq!(table.records().collect::<Vec<_>>(), ["accepted"]);
}
