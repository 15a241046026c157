//! The engine gets the ids of the path, and rows have exactly the tokens that were drawn.

use rolldock_trajectory::Template;
use serde_json::json;

use super::engine::{Letters, Reply, says};
use super::rig::{Rig, floats, mask, numbers, said, texts, user};

#[tokio::test]
async fn each_prompt_is_the_path_of_its_turn() {
    let rig = Rig::new().await;
    rig.engine.script([says("four."), says("<think>hm</think>nine"), says("done")]);
    let opened = rig.open(json!({ "prompt": "sums", "metadata": { "row": 7 } })).await;
    let mut messages = vec![user("2 + 2")];
    for question in ["4 + 5", "and so on", ""] {
        let completion = rig.chat(&opened, &json!(messages)).await;
        assert_eq!(completion["choices"][0]["finish_reason"], "stop");
        let mut message = said(&completion);
        // Most agents drop the reasoning.
        message.as_object_mut().unwrap().retain(|key, _| !key.starts_with("reasoning"));
        messages.extend([message, user(question)]);
    }
    let (prompts, drawn) = (rig.engine.prompts(), rig.engine.drawn());
    assert_eq!(Letters.decode(&prompts[0]), "[user]2 + 2\u{3}[assistant]");
    for turn in 1..3 {
        let path = [prompts[turn - 1].clone(), drawn[turn - 1].clone()].concat();
        assert_eq!(prompts[turn][..path.len()], path, "turn {turn}");
        let behind = Letters.decode(&prompts[turn][path.len()..]);
        let question = ["", "4 + 5", "and so on"][turn];
        assert!(behind.ends_with(&format!("[user]{question}\u{3}[assistant]")), "{behind:?}");
        assert_ne!(Letters.encode(&Letters.decode(&prompts[turn])).unwrap(), prompts[turn]);
    }

    let (status, shown) = rig.complete(&opened.uid, json!({ "reward": 0.5 })).await;
    assert_eq!(
        (status, &shown["turns"], &shown["sampled_tokens"]),
        (200, &json!(3), &json!(drawn.concat().len()))
    );
    let rows = rig.rows().await;
    assert_eq!(rows.num_rows(), 1);
    let whole = [numbers(&rows, "prompt_ids", 0), numbers(&rows, "response_ids", 0)].concat();
    assert_eq!(whole, [prompts[2].clone(), drawn[2].clone()].concat());
    let trained: usize = mask(&rows, 0).iter().map(|bit| usize::from(*bit)).sum();
    assert_eq!(trained, drawn.concat().len());
    assert_eq!(floats(&rows, "reward"), [0.5]);
    assert_eq!(texts(&rows, "trajectory_uid"), [opened.uid]);
    assert_eq!(texts(&rows, "version_source"), ["engine"]);
    assert_eq!(texts(&rows, "metadata"), [r#"{"row":7}"#]);
    assert_eq!(numbers(&rows, "turn_starts", 0).len(), 3);
}

#[tokio::test]
async fn sampling_is_the_trajectorys_and_limits_only_fall() {
    let rig = Rig::new().await;
    let opened = rig
        .open(json!({ "sampling": { "temperature": 0.25, "seed": 7 }, "limits": { "turn_tokens": 50 } }))
        .await;
    for asked in [10, 1_000_000] {
        let body = json!({
            "model": "gpt-4o", "messages": [user("x")], "temperature": 2, "top_p": 0.1, "seed": 1,
            "max_tokens": asked, "logit_bias": { "5": 100 }, "presence_penalty": 2,
        });
        let (status, answer) = rig.try_chat(&opened, body).await;
        assert_eq!((status, &answer["model"]), (200, &json!("gpt-4o")));
    }
    let requests = rig.engine.requests();
    let params: Vec<_> = requests.iter().map(|request| &request["sampling_params"]).collect();
    for params in &params {
        assert_eq!(params["temperature"], 0.25);
        assert_eq!((&params["top_p"], &params["top_k"]), (&json!(1.0), &json!(-1)));
        assert_eq!((&params["repetition_penalty"], &params["presence_penalty"]), (&json!(1.0), &json!(0.0)));
        assert!(params.get("logit_bias").is_none());
        assert_eq!(params["logprobs"], 0);
    }
    assert_eq!((&params[0]["max_tokens"], &params[1]["max_tokens"]), (&json!(10), &json!(50)));
    assert_ne!(params[0]["seed"], params[1]["seed"]);
    assert_eq!(requests[0]["model"], "letters");
    assert_ne!(requests[0]["request_id"], requests[1]["request_id"]);
    let (status, refused) = rig.try_chat(&opened, json!({ "messages": [user("x")], "n": 2 })).await;
    assert_eq!(status, 400);
    assert!(refused["error"]["message"].as_str().unwrap().contains("expected n=1"), "{refused}");
}

#[tokio::test]
async fn a_turn_that_the_engine_cuts_off_continues_with_another_version() {
    let rig = Rig::new().await;
    let cut = Reply { finish: "abort", text: "half of ".to_owned(), ..says("") };
    rig.engine.script([cut, Reply { version: "step-2", ..says("it") }]);
    let opened = rig.open(json!({})).await;
    let completion = rig.chat(&opened, &json!([user("x")])).await;
    assert_eq!(said(&completion)["content"], "half of it");
    let (prompts, drawn) = (rig.engine.prompts(), rig.engine.drawn());
    assert_eq!(prompts[1], [prompts[0].clone(), drawn[0].clone()].concat());
    rig.complete(&opened.uid, json!({ "reward": 1.0 })).await;
    let rows = rig.rows().await;
    assert_eq!(numbers(&rows, "response_ids", 0), drawn.concat());
    let column = |name: &str| format!("{:?}", rows.column_by_name(name).unwrap());
    assert!(column("policy_version_min").contains('1') && column("policy_version_max").contains('2'));
}

#[tokio::test]
async fn an_empty_abort_is_no_turn() {
    let rig = Rig::new().await;
    let empty = Reply { finish: "stop", text: String::new(), ..says("") };
    rig.engine.script([empty, says("now")]);
    let opened = rig.open(json!({})).await;
    assert_eq!(said(&rig.chat(&opened, &json!([user("x")])).await)["content"], "now");
    assert_eq!(rig.engine.derenders().len(), 1);
    assert_eq!(rig.show(&opened.uid).await["turns"], 1);
}

#[tokio::test]
async fn parallel_branches_are_rows_that_train_each_token_once() {
    let rig = Rig::new().await;
    rig.engine.script([says("plan"), says("left"), says("right"), says("sub")]);
    let opened = rig.open(json!({})).await;
    let first = said(&rig.chat(&opened, &json!([user("begin")])).await);
    let (left, right) =
        (json!([user("begin"), first, user("go left")]), json!([user("begin"), first, user("go right")]));
    let other = json!([{ "role": "system", "content": "you are a helper" }, user("help")]);
    futures::join!(rig.chat(&opened, &left), rig.chat(&opened, &right), rig.chat(&opened, &other));
    rig.complete(&opened.uid, json!({ "reward": 1.0, "turn_rewards": { "0": 0.5 } })).await;
    let rows = rig.rows().await;
    assert_eq!(rows.num_rows(), 3);
    let trained: usize = (0..3).flat_map(|row| mask(&rows, row)).map(usize::from).sum();
    assert_eq!(trained, rig.engine.drawn().concat().len());
    assert_eq!(floats(&rows, "reward"), [1.0; 3]);
}

#[tokio::test]
async fn a_server_that_takes_no_ids_is_used_and_its_rows_say_so() {
    let rig = Rig::new().await;
    rig.engine.takes_no_ids();
    rig.engine.script([says("a"), says("b")]);
    let opened = rig.open(json!({})).await;
    let first = said(&rig.chat(&opened, &json!([user("x")])).await);
    rig.chat(&opened, &json!([user("x"), first, user("y")])).await;
    rig.complete(&opened.uid, json!({ "reward": 1.0 })).await;
    let rows = rig.rows().await;
    let flags = format!("{:?}", rows.column_by_name("is_reencoded").unwrap());
    assert!(flags.contains("true") && !flags.contains("false"), "{flags}");
    assert!(texts(&rows, "version_source").iter().all(|source| source == "client"));
    // The server encoded the first answer anew, so the second turn does not continue its ids.
    let (prompts, drawn) = (rig.engine.prompts(), rig.engine.drawn());
    let whole = |row| [numbers(&rows, "prompt_ids", row), numbers(&rows, "response_ids", row)].concat();
    let paths: Vec<Vec<u32>> =
        (0..2).map(|turn| [prompts[turn].clone(), drawn[turn].clone()].concat()).collect();
    assert_eq!((0..rows.num_rows()).map(whole).collect::<Vec<_>>(), paths);
}

#[tokio::test]
async fn a_failed_attempt_is_repeated_and_a_refusal_is_passed_on() {
    let rig = Rig::new().await;
    rig.engine.script([Reply { status: 500, ..says("broken") }, says("fine")]);
    let opened = rig.open(json!({})).await;
    assert_eq!(said(&rig.chat(&opened, &json!([user("x")])).await)["content"], "fine");
    let seeds: Vec<_> =
        rig.engine.requests().iter().map(|request| request["sampling_params"]["seed"].clone()).collect();
    assert_ne!(seeds[0], seeds[1]);
    rig.engine.script([Reply { status: 400, ..says("Invalid grammar") }]);
    let (status, refused) = rig.try_chat(&opened, json!({ "messages": [user("x")] })).await;
    assert_eq!(status, 400);
    assert!(refused["error"]["message"].as_str().unwrap().contains("Invalid grammar"), "{refused}");
    assert_eq!(rig.balancer.snapshot().in_use(), 0);
    assert_eq!(rig.show(&opened.uid).await["turns"], 1);
}

#[tokio::test]
async fn an_answer_with_an_id_outside_the_vocabulary_is_a_failed_attempt() {
    // The engine draws pairs of letters as ids from 2,000,000 on.
    let rig = Rig::with(|config| config.vocab_size = Some(2_000_000)).await;
    rig.engine.script([says("ab"), says("жж")]);
    let opened = rig.open(json!({})).await;
    assert_eq!(said(&rig.chat(&opened, &json!([user("x")])).await)["content"], "жж");
    assert_eq!(rig.show(&opened.uid).await["turns"], 1);
    let requests = rig.engine.requests();
    assert_eq!(requests.len(), 2);
    assert_ne!(requests[0]["request_id"], requests[1]["request_id"]);
}
