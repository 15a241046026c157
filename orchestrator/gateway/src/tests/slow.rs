//! Clients that read slowly, or not at all.

use std::time::Duration;

use rolldock_listener::{ConnectionLimits, Connections};
use rolldock_trajectory::{Delivery, TurnId};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::rig::{Opened, Rig, mask, read, user};

/// An answer repeats the model's name. A long name makes an answer that is larger than any socket buffer.
const NAME_BYTES: usize = 24 << 20;

/// Sends a request over a connection with a small buffer for the answer.
async fn send(rig: &Rig, opened: &Opened, body: &Value) -> TcpStream {
    let address = rig.root.trim_start_matches("http://");
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(address.parse().unwrap()).await.unwrap();
    let (path, body) = (&opened.path, body.to_string());
    let head = format!(
        "POST {path}/chat/completions HTTP/1.1\r\nhost: {address}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).await.unwrap();
    stream
}

/// The kinds of all records of the log.
fn kinds(rig: &Rig) -> String {
    let mut kinds = String::new();
    for frame in rig.frames().iter().skip(1) {
        // A head of 12 bytes. Each record has a number, a flag, and the length of what follows.
        let mut rest = &frame[12..];
        while !rest.is_empty() {
            let length = u32::from_le_bytes(rest[9..13].try_into().unwrap()) as usize;
            kinds.push(char::from(rest[13]));
            rest = &rest[13 + length..];
        }
    }
    kinds
}

/// A gateway that closes idle connections soon, and a client that keeps none.
async fn impatient() -> Rig {
    let limits = ConnectionLimits { keep_alive: 0.5, ..ConnectionLimits::default() };
    let mut rig = Rig::with(|config| config.connections = Connections::new("gateway", &limits)).await;
    rig.client = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).build().unwrap();
    rig
}

#[tokio::test]
async fn a_client_that_never_reads_holds_no_permit_and_its_turn_waits_for_its_retry() {
    let rig = impatient().await;
    let opened = rig.open(json!({})).await;
    let body = json!({ "model": "m".repeat(NAME_BYTES), "messages": [user("x")] });
    let never_read = send(&rig, &opened, &body).await;
    let made = async || (rig.show(&opened.uid).await["turns"] == 1).then_some(());
    rig.until("the turn is recorded", made).await;
    assert_eq!(rig.balancer.snapshot().in_use(), 0);
    // After its beginning, the log has the opening, the turn, and the failed delivery: the client read
    // nothing.
    let noted = async || (rig.frames().len() == 4).then_some(());
    rig.until("the failed delivery is noted", noted).await;
    drop(never_read);
    let retry = rig.call(&opened, "chat/completions", &body).header("x-stainless-retry-count", "1");
    assert_eq!(read(retry.send().await.unwrap()).await.0, 200);
    rig.complete(&opened.uid, json!({ "reward": 1.0 })).await;
    let trained: usize = mask(&rig.rows().await, 0).into_iter().map(usize::from).sum();
    assert_eq!((trained, rig.engine.drawn().len()), (rig.engine.drawn().concat().len(), 1));
}

#[tokio::test]
async fn a_client_that_reads_slowly_gets_its_whole_answer() {
    let rig = impatient().await;
    let opened = rig.open(json!({})).await;
    let body = json!({ "model": "m", "messages": [user("x")], "stream": true });
    let mut stream = send(&rig, &opened, &body).await;
    let mut answer = Vec::new();
    while !answer.ends_with(b"data: [DONE]\n\n\r\n0\r\n\r\n") {
        answer.push(stream.read_u8().await.unwrap());
        // A part of the bytes is read late.
        if answer.len() % 64 == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    rig.complete(&opened.uid, json!({ "reward": 1.0 })).await;
    let trained: usize = mask(&rig.rows().await, 0).into_iter().map(usize::from).sum();
    assert_eq!(trained, rig.engine.drawn().concat().len());
}

#[tokio::test]
async fn an_answer_that_is_still_read_when_the_rows_are_put_is_not_noted() {
    let mut rig = Rig::new().await;
    let opened = rig.open(json!({})).await;
    let body = json!({ "model": "m".repeat(NAME_BYTES), "messages": [user("x")] });
    let never_read = send(&rig, &opened, &body).await;
    let made = async || (rig.show(&opened.uid).await["turns"] == 1).then_some(());
    rig.until("the turn is recorded", made).await;
    let one = rig.core().book.live().pop().unwrap();
    rig.complete(&opened.uid, json!({ "reward": 1.0 })).await;
    let ended = async || (rig.show(&opened.uid).await["rows"].is_u64()).then_some(());
    rig.until("its rows are decided", ended).await;
    rig.core().delivery(&one, TurnId(0), Delivery::Failed);
    rig.core().give_up_reward(&one);
    drop((one, never_read));
    rig.restart().await;
    assert_eq!(kinds(&rig), "OTREB", "the opening, the turn, the reward, the end, and what is left");
}
