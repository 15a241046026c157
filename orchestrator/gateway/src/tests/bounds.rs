//! The gateway's own bounds: trajectories in memory, groups that the queue does not take, and calls in parallel.

use rolldock_queue::PartitionSpec;
use serde_json::json;

use super::engine::says;
use super::rig::{Rig, read, texts, user};

#[tokio::test]
async fn beyond_the_bound_of_trajectories_new_ones_are_refused_until_rows_are_put() {
    let mut rig = Rig::with(|config| config.trajectories_max = 2).await;
    let opened = [rig.open(json!({})).await, rig.open(json!({})).await];
    let more = rig.client.post(format!("{}/trajectories", rig.root)).send().await.unwrap();
    assert_eq!(more.headers()["retry-after"], "5");
    let (status, refused) = read(more).await;
    assert_eq!((status, &refused["error"]["code"]), (503, &json!("busy")), "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("trajectories_max=2"), "{refused}");
    // The open trajectories still take calls, also after a restart.
    rig.chat(&opened[0], &json!([user("x")])).await;
    rig.restart().await;
    assert_eq!(rig.control("trajectories", json!({})).await.0, 503);
    rig.chat(&opened[1], &json!([user("x")])).await;
    rig.complete(&opened[0].uid, json!({ "reward": 1.0 })).await;
    let made = async || (rig.control("trajectories", json!({})).await.0 == 201).then_some(());
    rig.until("there is room", made).await;
    assert_eq!(rig.control("trajectories", json!({})).await.0, 503);
}

#[tokio::test]
async fn a_group_that_the_queue_cannot_take_is_refused_and_holds_no_other() {
    let rig = Rig::new().await;
    rig.queue.declare(PartitionSpec::new("train", ["train"], 2)).await.unwrap();
    let mut large = Vec::new();
    for _ in 0..3 {
        let one = rig.open(json!({ "group": "large", "group_size": 3 })).await;
        rig.chat(&one, &json!([user("x")])).await;
        large.push(one);
    }
    for one in &large {
        rig.complete(&one.uid, json!({ "reward": 1.0 })).await;
    }
    let state = async |uid: &str, state: &str| {
        rig.until(state, async || {
            let shown = rig.show(uid).await;
            (shown["state"] == state).then_some(shown)
        })
        .await
    };
    let shown = state(&large[0].uid, "refused").await;
    assert!(shown["refused"].as_str().unwrap().contains("capacity_rows=2"), "{shown}");
    // The first two groups fill the queue, and the third group waits.
    let mut small = Vec::new();
    for _ in 0..3 {
        let one = rig.open(json!({})).await;
        rig.chat(&one, &json!([user("x")])).await;
        rig.complete(&one.uid, json!({ "reward": 1.0 })).await;
        small.push(one.uid);
    }
    state(&small[0], "put").await;
    state(&small[1], "put").await;
    assert_eq!(rig.show(&small[2]).await["state"], "settled");
    for uid in &small {
        assert_eq!(texts(&rig.rows().await, "trajectory_uid"), std::slice::from_ref(uid));
    }
    state(&small[2], "put").await;
}

#[tokio::test]
async fn parallel_calls_stay_within_the_limits_together() {
    for (limits, most) in
        [(json!({ "tokens": 8, "turn_tokens": 4 }), "tokens"), (json!({ "turns": 2 }), "turns")]
    {
        let rig = Rig::new().await;
        // The text and its end are one token together, so a turn returns most of the tokens that it reserved.
        rig.engine.script((0..8).map(|_| says("a")));
        let opened = rig.open(json!({ "limits": limits })).await;
        rig.engine.hold();
        let body = json!({ "messages": [user("x")] });
        let calls = futures::future::join_all((0..4).map(|_| rig.try_chat(&opened, body.clone())));
        let watching = async {
            let busy = async || (rig.balancer.snapshot().in_use() == 2).then_some(());
            rig.until("two calls are with the engine", busy).await;
            rig.engine.go();
        };
        let (answers, ()) = futures::join!(calls, watching);
        let served = answers.iter().filter(|(status, _)| *status == 200).count();
        let shown = rig.show(&opened.uid).await;
        if most == "turns" {
            assert_eq!((served, &shown["turns"], &shown["end"]), (2, &json!(2), &json!("turns")));
            let refused = answers.iter().find(|(status, _)| *status == 400).unwrap();
            assert_eq!(refused.1["error"]["code"], "trajectory_ended");
        } else {
            // Each call drew one of the four tokens that it had reserved. The waiting calls could use the
            // returned tokens.
            assert_eq!((served, &shown["sampled_tokens"], &shown["state"]), (4, &json!(4), &json!("open")));
        }
        let asked = rig.engine.requests();
        let limit = |request: &serde_json::Value| request["sampling_params"]["max_tokens"].as_u64().unwrap();
        assert!(most == "turns" || asked.iter().all(|request| limit(request) == 4), "{asked:?}");
    }
}

#[tokio::test]
async fn an_agent_that_asks_for_few_tokens_reserves_few() {
    let rig = Rig::new().await;
    let opened = rig.open(json!({ "limits": { "tokens": 8 } })).await;
    rig.engine.hold();
    let body = json!({ "messages": [user("x")], "max_tokens": 2 });
    let calls = futures::future::join_all((0..4).map(|_| rig.try_chat(&opened, body.clone())));
    let watching = async {
        let busy = async || (rig.balancer.snapshot().in_use() == 4).then_some(());
        rig.until("all four calls are with the engine", busy).await;
        rig.engine.go();
    };
    let (answers, ()) = futures::join!(calls, watching);
    assert!(answers.iter().all(|(status, _)| *status == 200), "{answers:?}");
}
