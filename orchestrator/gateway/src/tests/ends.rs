//! Limits, rewards and groups: how trajectories end, and what becomes of their rows.

use serde_json::json;

use super::engine::says;
use super::rig::{Rig, floats, read, said, texts, user};
use crate::Unrewarded;

#[tokio::test]
async fn limits_of_turns_and_tokens_end_a_trajectory() {
    for (limits, end, turns) in [(json!({ "turns": 2 }), "turns", 2), (json!({ "tokens": 3 }), "tokens", 1)] {
        let rig = Rig::new().await;
        rig.engine.script([says("abcdef"), says("abcdef")]);
        let opened = rig.open(json!({ "limits": limits })).await;
        for _ in 0..turns {
            rig.chat(&opened, &json!([user("x")])).await;
        }
        let call = rig.call(&opened, "chat/completions", &json!({ "messages": [user("x")] }));
        let answer = call.send().await.unwrap();
        assert_eq!(answer.headers()["x-should-retry"], "false");
        let (status, refused) = read(answer).await;
        assert_eq!((status, &refused["error"]["code"]), (400, &json!("trajectory_ended")), "{refused}");
        let shown = rig.show(&opened.uid).await;
        assert_eq!(
            (&shown["end"], &shown["turns"], &shown["state"]),
            (&json!(end), &json!(turns), &json!("ended"))
        );
        // A late reward.
        assert_eq!(rig.complete(&opened.uid, json!({ "reward": -1 })).await.0, 200);
        // Each of the equal requests is a separate turn and a separate row.
        assert_eq!(texts(&rig.rows().await, "end"), vec![end; turns]);
        let after = rig.try_chat(&opened, json!({ "messages": [user("x")] })).await;
        assert_eq!((after.0, &after.1["error"]["code"]), (400, &json!("trajectory_ended")));
    }
}

#[tokio::test]
async fn times_end_a_trajectory_and_the_wait_for_its_reward() {
    let rig = Rig::new().await;
    let limits = json!({ "idle": 0.05, "reward": 0.05 });
    let opened = rig.open(json!({ "limits": limits })).await;
    rig.chat(&opened, &json!([user("x")])).await;
    let state = async |state: &str| {
        rig.until(state, async || {
            let shown = rig.show(&opened.uid).await;
            (shown["state"] == state).then_some(shown)
        })
        .await
    };
    let shown = state("left_out").await;
    assert_eq!((&shown["end"], &shown["rows"]), (&json!("idle"), &json!(0)));
    let (status, late) = rig.complete(&opened.uid, json!({ "reward": 1.0 })).await;
    assert_eq!(status, 409, "{late}");
    let opened = rig.open(json!({ "limits": { "wall": 0.05, "reward": 1000.0 } })).await;
    rig.engine.hold();
    let call = rig.try_chat(&opened, json!({ "messages": [user("x")] })).await;
    assert_eq!((call.0, &call.1["error"]["code"]), (400, &json!("trajectory_ended")), "{}", call.1);
    assert_eq!(rig.show(&opened.uid).await["end"], "wall");
    rig.until("no call runs", async || (rig.balancer.snapshot().in_use() == 0).then_some(())).await;
}

#[tokio::test]
async fn a_reward_is_given_once() {
    let mut rig = Rig::new().await;
    let opened = rig.open(json!({})).await;
    rig.chat(&opened, &json!([user("x")])).await;
    // Without a reward the trajectory only ends.
    assert_eq!(rig.complete(&opened.uid, json!({})).await.1["state"], "ended");
    rig.restart().await;
    for _ in 0..2 {
        assert_eq!(rig.complete(&opened.uid, json!({ "reward": 2.0 })).await.0, 200);
    }
    assert_eq!(rig.complete(&opened.uid, json!({ "reward": 3.0 })).await.0, 409);
    assert_eq!(floats(&rig.rows().await, "reward"), [2.0]);
    rig.until("it is put", async || (rig.show(&opened.uid).await["state"] == "put").then_some(())).await;
    rig.restart().await;
    assert_eq!(rig.complete(&opened.uid, json!({ "reward": 2.0 })).await.1["state"], "put");
    assert_eq!(rig.complete(&opened.uid, json!({ "reward": 3.0 })).await.0, 409);
    assert_eq!(rig.complete("t-none", json!({})).await.0, 404);
    for wrong in [json!({ "reward": "x" }), json!({ "rewards": 1 })] {
        assert_eq!(rig.complete(&opened.uid, wrong).await.0, 400);
    }
}

#[tokio::test]
async fn a_group_is_put_together_by_its_rule() {
    for (rule, rewards) in [
        (Unrewarded::Drop, vec![1.0, 3.0]),
        (Unrewarded::Zero, vec![1.0, 0.0, 3.0]),
        (Unrewarded::DropGroup, Vec::new()),
    ] {
        let rig = Rig::with(|config| config.unrewarded = rule).await;
        let creation = json!({ "group": "g", "group_size": 3, "limits": { "reward": 0.05, "idle": 0.2 } });
        let mut opened = Vec::new();
        for _ in 0..3 {
            opened.push(rig.open(creation.clone()).await);
        }
        assert_eq!(rig.control("trajectories", creation.clone()).await.0, 409, "the group is full");
        for one in &opened {
            rig.chat(one, &json!([user("x")])).await;
        }
        rig.complete(&opened[0].uid, json!({ "reward": 1.0 })).await;
        rig.complete(&opened[2].uid, json!({ "reward": 3.0 })).await;
        // The second trajectory is abandoned.
        if rewards.is_empty() {
            let left = async || (rig.show(&opened[0].uid).await["state"] == "left_out").then_some(());
            rig.until("the group is left out", left).await;
            continue;
        }
        let rows = rig.rows().await;
        assert_eq!(floats(&rows, "reward"), rewards);
        assert!(floats(&rows, "advantage").iter().sum::<f32>().abs() < 1e-4);
        assert_eq!(texts(&rows, "prompt_uid"), vec!["g"; rewards.len()]);
    }
}

#[tokio::test]
async fn capabilities_are_scoped_and_control_needs_its_token() {
    let rig = Rig::with(|config| config.token = Some("secret".to_owned())).await;
    let make = || rig.client.post(format!("{}/trajectories", rig.root));
    assert_eq!(read(make().send().await.unwrap()).await.0, 401);
    let (status, made) = read(make().bearer_auth("secret").send().await.unwrap()).await;
    assert_eq!(status, 201);
    let uid = made["trajectory"].as_str().unwrap();
    let capability = made["capability"].as_str().unwrap();
    assert_eq!(rig.complete(uid, json!({ "reward": 1 })).await.0, 401);
    let body = json!({ "model": "m", "messages": [user("x")] });
    let call = || rig.client.post(format!("{}/v1/chat/completions", rig.root)).json(&body);
    for named in [
        call().bearer_auth(capability),
        call().header("x-api-key", capability),
        call().header("x-rolldock-trajectory", capability).bearer_auth("any key"),
    ] {
        assert_eq!(read(named.send().await.unwrap()).await.0, 200);
    }
    for unnamed in [call(), call().bearer_auth(uid)] {
        let (status, refused) = read(unnamed.send().await.unwrap()).await;
        assert_eq!((status, &refused["error"]["code"]), (401, &json!("no_trajectory")));
    }
    let models = rig.client.get(format!("{}/v1/models", rig.root)).bearer_auth(capability);
    assert_eq!(read(models.send().await.unwrap()).await.1["data"][0]["id"], "letters");
    let cancelled = rig.client.delete(format!("{}/trajectories/{uid}", rig.root)).bearer_auth("secret");
    assert_eq!(read(cancelled.send().await.unwrap()).await.1["end"], "cancelled");
}

#[tokio::test]
async fn what_is_wrong_is_said() {
    let rig = Rig::new().await;
    for (body, words) in [
        (json!({ "limits": { "turns": 0 } }), "limits.turns"),
        (json!({ "limits": { "steps": 1 } }), "steps"),
        (json!({ "group_size": 2 }), "expected group"),
        (json!({ "sampling": { "top_p": 0 } }), "sampling.top_p"),
    ] {
        let (status, refused) = rig.control("trajectories", body).await;
        assert_eq!(status, 400);
        assert!(refused["error"]["message"].as_str().unwrap().contains(words), "{refused}");
    }
    let opened = rig.open(json!({})).await;
    for (path, body, words) in [
        ("chat/completions", json!({ "messages": [] }), "expected messages"),
        ("chat/completions", json!({ "messages": [{ "content": "x" }] }), "expected a role"),
        ("completions", json!({ "prompt": [[1], [2]] }), "expected prompt"),
        (
            "messages",
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image" }] }] }),
            "found image",
        ),
        ("responses", json!({ "input": "x", "previous_response_id": "r" }), "previous_response_id"),
    ] {
        let (status, refused) = read(rig.call(&opened, path, &body).send().await.unwrap()).await;
        assert_eq!(status, 400, "{refused}");
        assert!(refused["error"]["message"].as_str().unwrap().contains(words), "{refused}");
    }
    let long = user(&"x".repeat(5000));
    let (status, refused) = rig.try_chat(&opened, json!({ "messages": [long] })).await;
    assert_eq!(status, 400);
    assert!(refused["error"]["message"].as_str().unwrap().contains("maximum context length"), "{refused}");
    assert_eq!(said(&rig.chat(&opened, &json!([user("x")])).await)["content"], "ok");
}

#[tokio::test]
async fn a_scorer_gives_the_reward_and_a_failed_one_leaves_the_trajectory_open() {
    let rig = Rig::new().await;
    rig.engine.script([says("it is 41"), says("no, it is 4\n#### 42")]);
    let opened = rig.open(json!({})).await;
    let score = |scorer: serde_json::Value, truth: &str| json!({ "score": { "scorer": scorer, "ground_truth": truth } });
    let (status, early) = rig.complete(&opened.uid, score(json!("gsm8k"), "42")).await;
    assert_eq!(status, 400);
    assert!(early["error"]["message"].as_str().unwrap().contains("has no turn to score"), "{early}");
    let first = said(&rig.chat(&opened, &json!([user("x")])).await);
    rig.chat(&opened, &json!([user("x"), first, user("y")])).await;
    for (body, words) in [
        (score(json!("gsm9k"), "42"), "gsm9k"),
        (score(json!({ "scorer": "gsm8k", "method": "loose" }), "42"), "loose"),
        (score(json!(7), "42"), "found 7"),
        (score(json!({ "scorer": "json_schema", "schema": { "type": 7 } }), "42"), "schema"),
        (json!({ "score": { "scorer": "gsm8k" } }), "ground_truth"),
        (json!({ "score": { "scorer": "gsm8k", "ground_truth": "1" }, "reward": 1.0 }), "found both"),
    ] {
        let (status, refused) = rig.complete(&opened.uid, body).await;
        assert_eq!(status, 400, "{refused}");
        assert!(refused["error"]["message"].as_str().unwrap().contains(words), "{refused}");
        assert_eq!(rig.show(&opened.uid).await["state"], "open");
    }
    let (status, shown) = rig.complete(&opened.uid, score(json!("gsm8k"), "42")).await;
    assert_eq!((status, &shown["reward"], &shown["end"]), (200, &json!(1.0), &json!("completed")), "{shown}");
    assert_eq!(floats(&rig.rows().await, "reward"), [1.0]);
    rig.until("it is put", async || (rig.show(&opened.uid).await["state"] == "put").then_some(())).await;
    assert_eq!(rig.complete(&opened.uid, score(json!("gsm8k"), "42")).await.1["state"], "put");
}
