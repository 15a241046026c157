//! Damaged frames on the local socket.

use rand::RngExt;
use rolldock_queue::{QueueConfig, TransferQueue};

use super::{Damage, assert_no_panic, batch, count_panics, fill, framed, say, served_here, stream_of};

/// Valid calls of a local client. Each call has its JSON text and the bytes that follow this text.
fn asks(rows: &[u8]) -> Vec<(String, Vec<u8>)> {
    let handle = r#"{"slot":0,"generation":0}"#;
    let lease = r#"{"partition":"p","life":1,"lease":1,"member":0,"take":3}"#;
    let none: [String; 16] = [
        r#"{"Room":{"bytes":5000}}"#.to_owned(),
        r#"{"Take":{"partition":"p","take":{"task":"a","groups":2,"columns":["id"],"sampler":{"random":{"seed":7}}}}}"#.to_owned(),
        r#"{"Take":{"partition":"p","take":{"task":"b","rows":2,"share":{"rank":0,"ranks":2},"wait_ms":5}}}"#.to_owned(),
        r#"{"Put":{"partition":"p","query":{"group":"g"},"rows":{"Loan":{"id":1,"length":500}}}}"#.to_owned(),
        format!(r#"{{"Get":{{"partition":"p","rows":[{handle}],"columns":["id"]}}}}"#),
        format!(r#"{{"Clear":{{"partition":"p","rows":[{handle}],"token":"t"}}}}"#),
        format!(r#"{{"SetTags":{{"partition":"p","tags":[[{handle},{{"x":1}}]]}}}}"#),
        format!(r#"{{"Ack":{lease}}}"#),
        format!(r#"{{"Nack":{lease}}}"#),
        format!(r#"{{"Renew":{lease}}}"#),
        r#"{"Find":{"partition":"p","keys":["k"]}}"#.to_owned(),
        r#"{"Reset":{"partition":"p","task":"a"}}"#.to_owned(),
        r#"{"StatusAfter":{"partition":"p","revision":3,"wait_ms":5}}"#.to_owned(),
        r#"{"CloseGroups":{"partition":"p","older_than_ms":5,"unfinished":"drop"}}"#.to_owned(),
        r#"{"Declare":{"name":"q","tasks":[{"name":"a"}],"capacity_rows":8}}"#.to_owned(),
        r#""Inspect""#.to_owned(),
    ];
    let mut asks: Vec<_> = none.map(|ask| (ask, Vec::new())).to_vec();
    let put = r#"{"Put":{"partition":"p","query":{"group":"g","token":"t"},"rows":"Tail"}}"#.to_owned();
    asks.push((put, rows.to_vec()));
    asks.push((r#"{"WriteColumns":{"partition":"p","rows":"Tail","token":"t"}}"#.to_owned(), rows.to_vec()));
    asks
}

#[tokio::test]
async fn damaged_messages_end_only_their_connection() {
    count_panics();
    let queue = TransferQueue::open(QueueConfig::default()).unwrap();
    fill(&queue).await;
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("queue.sock");
    let served = served_here(queue.clone(), &socket);
    let rows = stream_of(&batch(0, 4));
    let asks = asks(&rows);
    let mut damage = Damage::new("socket");
    while damage.goes_on() {
        // One connection carries up to three calls. Most of them are damaged: in the frame, in the JSON text,
        // or in the bytes that follow.
        let mut bytes = Vec::new();
        for id in 1..=damage.rng.random_range(1..4) {
            let (ask, tail) = &asks[damage.rng.random_range(0..asks.len())];
            let words = format!(r#"{{"Call":{{"id":{id},"ask":{ask}}}}}"#);
            let frame = match damage.rng.random_range(0..4) {
                0 => damage.of(&framed(&words, tail)),
                1 => framed(&String::from_utf8_lossy(&damage.of(words.as_bytes())), tail),
                2 => framed(&words, &damage.of(tail)),
                _ => framed(&words, tail),
            };
            bytes.extend_from_slice(&frame);
        }
        say(&socket, &bytes).await;
    }
    assert_no_panic();
    assert!(!served.is_finished());
    let said = say(&socket, &framed(r#"{"Call":{"id":1,"ask":"Inspect"}}"#, &[])).await;
    assert!(said.contains("payload_bytes"), "{said}");
    for partition in queue.partitions() {
        rolldock_queue::invariants::rows_accounted(&partition.inspect()).unwrap();
    }
}
