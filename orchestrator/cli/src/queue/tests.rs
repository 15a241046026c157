use rolldock_queue::{LeaseInspection, PartitionInspection};

use super::*;

/// A queue with a lease whose term is 10 s.
fn leased() -> QueueInspection {
    let lease = LeaseInspection {
        lease: 1,
        name: "0000000000000001".to_owned(),
        task: "train".to_owned(),
        holders: vec!["rank 0".to_owned()],
        rows: 2,
        members: 1,
        acked_members: 0,
        expires_in_ms: 10_000,
    };
    let partition = PartitionInspection {
        name: "train".to_owned(),
        rows: 2,
        groups: 1,
        capacity_rows: 8,
        columns: vec![],
        tasks: vec![],
        dispositions: Default::default(),
        leases: vec![lease],
    };
    QueueInspection { partitions: vec![partition], payload_bytes: 64, units: vec![] }
}

#[test]
fn the_time_left_of_a_lease_is_known_from_a_server_and_bounded_from_a_directory() {
    let of_server = describe(&leased(), Terms::Left);
    assert!(of_server.contains("rank 0 has 2 rows for train, 10.0 s left"), "{of_server}");
    assert!(!of_server.contains("directory"), "{of_server}");
    let of_directory = describe(&leased(), Terms::Whole);
    assert!(of_directory.contains("rank 0 has 2 rows for train, at most 10.0 s left"), "{of_directory}");
    assert!(of_directory.contains("the directory does not say when leases began"), "{of_directory}");
    let without_leases = QueueInspection { partitions: vec![], ..leased() };
    assert!(!describe(&without_leases, Terms::Whole).contains("directory"));
}
