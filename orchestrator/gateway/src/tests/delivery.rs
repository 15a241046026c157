//! Exactly once: repeated requests, clients that are gone, and restarts.

use std::io::Write;
use std::time::Duration;

use serde_json::json;

use super::engine::says;
use super::rig::{Rig, mask, numbers, read, said, user};

const RETRIES: &str = "x-stainless-retry-count";

#[tokio::test]
async fn a_marked_retry_replays_and_an_equal_request_is_a_new_turn() {
    let rig = Rig::new().await;
    rig.engine.script([says("<think>t</think>CALL add {\"a\": 1};"), says("second")]);
    let opened = rig.open(json!({})).await;
    let body = json!({ "model": "m", "messages": [user("x")] });
    let first = rig.try_chat(&opened, body.clone()).await;
    let retry = rig.call(&opened, "chat/completions", &body).header(RETRIES, "1").send().await.unwrap();
    assert_eq!(read(retry).await, first);
    assert_eq!(first.1["choices"][0]["finish_reason"], "tool_calls");
    let marked_zero = rig.call(&opened, "chat/completions", &body).header(RETRIES, "0").send().await.unwrap();
    assert_eq!(said(&read(marked_zero).await.1)["content"], "second");
    let shown = rig.show(&opened.uid).await;
    assert_eq!((&shown["turns"], rig.engine.requests().len()), (&json!(2), 2));
    // A retry of a request that has no turn makes a turn.
    let other = json!({ "model": "m", "messages": [user("y")] });
    let retry = rig.call(&opened, "chat/completions", &other).header(RETRIES, "2").send().await.unwrap();
    assert_eq!(read(retry).await.0, 200);
    assert_eq!(rig.show(&opened.uid).await["turns"], 3);
}

#[tokio::test]
async fn a_client_that_is_gone_cancels_its_call_and_leaves_no_turn() {
    let rig = Rig::new().await;
    let opened = rig.open(json!({})).await;
    rig.engine.hold();
    let body = json!({ "model": "m", "messages": [user("x")] });
    for streamed in [false, true] {
        let mut body = body.clone();
        body["stream"] = json!(streamed);
        let call = rig.call(&opened, "chat/completions", &body).timeout(Duration::from_millis(200));
        assert!(call.send().await.unwrap_err().is_timeout());
    }
    let is_over = || rig.balancer.snapshot().in_use() == 0 && rig.engine.running() == 0;
    rig.until("the permits are returned and the requests are gone", async || is_over().then_some(())).await;
    rig.engine.go();
    assert_eq!(rig.show(&opened.uid).await["turns"], 0);
    let retry = rig.call(&opened, "chat/completions", &body).header(RETRIES, "1").send().await.unwrap();
    assert_eq!(read(retry).await.0, 200);
    assert_eq!(rig.engine.drawn().len(), 1, "what a client that is gone asked for was not drawn");
    assert_eq!(rig.show(&opened.uid).await["turns"], 1);
}

#[tokio::test]
async fn a_retry_waits_for_the_request_that_it_repeats() {
    let rig = Rig::new().await;
    rig.engine.script([says("once")]);
    let opened = rig.open(json!({})).await;
    rig.engine.hold();
    let body = json!({ "model": "m", "messages": [user("x")] });
    let first = rig.call(&opened, "chat/completions", &body).send();
    let retry = async {
        rig.until("a call", async || (rig.balancer.snapshot().in_use() == 1).then_some(())).await;
        let retry = rig.call(&opened, "chat/completions", &body).header(RETRIES, "1").send();
        let release = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            rig.engine.go();
        };
        futures::join!(retry, release).0
    };
    let (first, retry) = futures::join!(first, retry);
    assert_eq!(read(first.unwrap()).await, read(retry.unwrap()).await);
    assert_eq!(rig.show(&opened.uid).await["turns"], 1);
}

#[tokio::test]
async fn a_restart_continues_every_trajectory() {
    let mut rig = Rig::new().await;
    let opened = rig.open(json!({ "metadata": { "a": 1 } })).await;
    let mut messages = vec![user("0")];
    let mut last = json!(null);
    for turn in 0..3 {
        last = json!({ "model": "m", "messages": messages });
        let completion = rig.try_chat(&opened, last.clone()).await.1;
        messages.extend([said(&completion), user(&format!("{turn} more"))]);
        rig.restart().await;
    }
    // The last answer may have been lost with the process, and its agent asks again.
    let retry = rig.call(&opened, "chat/completions", &last).header(RETRIES, "1").send().await.unwrap();
    assert_eq!(said(&read(retry).await.1), messages[messages.len() - 2]);
    rig.chat(&opened, &json!(messages)).await;
    let (prompts, drawn) = (rig.engine.prompts(), rig.engine.drawn());
    for turn in 1..4 {
        let path = [prompts[turn - 1].clone(), drawn[turn - 1].clone()].concat();
        assert_eq!(prompts[turn][..path.len()], path, "turn {turn}");
    }
    rig.complete(&opened.uid, json!({ "reward": 1.0 })).await;
    let rows = rig.rows().await;
    let whole = [numbers(&rows, "prompt_ids", 0), numbers(&rows, "response_ids", 0)].concat();
    assert_eq!(whole, [prompts[3].clone(), drawn[3].clone()].concat());
    let trained: usize = mask(&rows, 0).iter().map(|bit| usize::from(*bit)).sum();
    assert_eq!(trained, drawn.concat().len());
}

#[tokio::test]
async fn a_torn_record_is_cut_off() {
    let mut rig = Rig::new().await;
    let opened = rig.open(json!({})).await;
    let completion = rig.chat(&opened, &json!([user("x")])).await;
    rig.stop().await;
    let file = rig.dir().join("trajectories.log");
    let mut log = std::fs::OpenOptions::new().append(true).open(file).unwrap();
    log.write_all(&[7; 9]).unwrap();
    rig.start().await;
    assert_eq!(rig.show(&opened.uid).await["turns"], 1);
    rig.chat(&opened, &json!([user("x"), said(&completion), user("y")])).await;
    rig.restart().await;
    assert_eq!(rig.show(&opened.uid).await["turns"], 2);
}

#[tokio::test]
async fn an_answer_that_was_not_delivered_is_masked_unless_it_is_asked_for_again() {
    for is_replayed in [false, true] {
        let mut rig = Rig::new().await;
        let opened = rig.open(json!({})).await;
        let first = said(&rig.chat(&opened, &json!([user("x")])).await);
        let body = json!({ "model": "m", "messages": [user("x"), first, user("y")] });
        rig.try_chat(&opened, body.clone()).await;
        // The process died before it noted the delivery of the last answer.
        rig.restart_without_the_last_frame().await;
        let frames = rig.frames().len();
        if is_replayed {
            let retry =
                rig.call(&opened, "chat/completions", &body).header(RETRIES, "1").send().await.unwrap();
            assert_eq!(read(retry).await.0, 200);
            // The delivery is noted after the client has the last byte.
            let noted = async || (rig.frames().len() > frames).then_some(());
            rig.until("the delivery is noted", noted).await;
        }
        rig.complete(&opened.uid, json!({ "reward": 1.0 })).await;
        let rows = rig.rows().await;
        let trained: usize = mask(&rows, 0).iter().map(|bit| usize::from(*bit)).sum();
        let drawn = rig.engine.drawn();
        let expected = if is_replayed { drawn.concat().len() } else { drawn[0].len() };
        assert_eq!(trained, expected, "replayed: {is_replayed}");
    }
}

#[tokio::test]
async fn two_equal_requests_at_once_that_are_not_marked_are_two_turns() {
    let rig = Rig::new().await;
    rig.engine.script([says("one"), says("other")]);
    let opened = rig.open(json!({})).await;
    rig.engine.hold();
    let body = json!({ "model": "m", "messages": [user("x")] });
    let calls = futures::future::join(rig.try_chat(&opened, body.clone()), rig.try_chat(&opened, body));
    let release = async {
        rig.until("both are with the engine", async || (rig.balancer.snapshot().in_use() == 2).then_some(()))
            .await;
        rig.engine.go();
    };
    let ((first, second), ()) = futures::join!(calls, release);
    let mut texts = [first, second].map(|(_, answer)| said(&answer)["content"].as_str().unwrap().to_owned());
    texts.sort();
    assert_eq!(texts, ["one", "other"]);
    let seeds: Vec<_> =
        rig.engine.requests().iter().map(|asked| asked["sampling_params"]["seed"].clone()).collect();
    assert_ne!(seeds[0], seeds[1], "equal requests would draw equal tokens");
    rig.complete(&opened.uid, json!({ "reward": 1.0 })).await;
    let rows = rig.rows().await;
    let trained: usize = (0..rows.num_rows()).flat_map(|row| mask(&rows, row)).map(usize::from).sum();
    assert_eq!((rows.num_rows(), trained), (2, rig.engine.drawn().concat().len()));
}
