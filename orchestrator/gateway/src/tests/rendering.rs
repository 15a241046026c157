//! Which turns the engine renders.

use serde_json::{Value, json};

use super::engine::{Reply, says};
use super::rig::{Opened, Rig, said, user};

/// Sends a first request, and a second one with the message `then` after the answer. Returns the status of
/// the second call.
async fn two_turns(rig: &Rig, opened: &Opened, body: &Value, then: Value) -> u16 {
    let mut body = body.clone();
    body["messages"] = json!([user("first")]);
    let (status, completion) = rig.try_chat(opened, body.clone()).await;
    assert_eq!(status, 200, "{completion}");
    body["messages"] = json!([user("first"), said(&completion), then]);
    rig.try_chat(opened, body).await.0
}

#[tokio::test]
async fn a_turn_whose_ids_and_parameters_are_known_is_not_rendered() {
    let rig = Rig::new().await;
    let opened = rig.open(json!({})).await;
    let body = json!({ "stop": ["###"] });
    assert_eq!(two_turns(&rig, &opened, &body, user("second")).await, 200);
    let parts = json!({ "role": "user", "content": [{ "type": "text", "text": "second" }] });
    assert_eq!(two_turns(&rig, &opened, &body, parts).await, 200);
    // Only the first turns of both conversations were rendered.
    assert_eq!(rig.engine.renders(), 2);
    for request in rig.engine.requests() {
        assert_eq!(request["sampling_params"]["stop"], json!(["###"]));
    }
}

#[tokio::test]
async fn a_request_of_another_kind_is_rendered() {
    let rig = Rig::new().await;
    let opened = rig.open(json!({})).await;
    let kinds = [
        json!({}),
        json!({ "stop": ["x"] }),
        json!({ "tools": [{ "type": "function", "function": { "name": "a" } }] }),
        json!({ "response_format": { "type": "json_schema", "json_schema": { "schema": { "type": "object" } } } }),
    ];
    let mut messages = vec![user("first")];
    for (turn, mut body) in kinds.into_iter().enumerate() {
        body["messages"] = json!(messages);
        let (status, completion) = rig.try_chat(&opened, body).await;
        assert_eq!(status, 200, "{completion}");
        assert_eq!(rig.engine.renders(), turn + 1);
        messages.extend([said(&completion), user("on")]);
    }
    let requests = rig.engine.requests();
    assert_eq!(requests[1]["sampling_params"]["stop"], json!(["x"]));
    assert_eq!(requests[3]["sampling_params"]["structured_outputs"]["json"]["type"], "object");
}

#[tokio::test]
async fn a_prompt_with_an_image_is_refused_in_every_turn() {
    let rig = Rig::new().await;
    let opened = rig.open(json!({})).await;
    let image = json!({ "type": "image_url", "image_url": { "url": "data:image/png;base64,AA==" } });
    let message = json!({ "role": "user", "content": [{ "type": "text", "text": "see" }, image] });
    assert_eq!(two_turns(&rig, &opened, &json!({}), message).await, 400);
    assert_eq!(rig.engine.requests().len(), 1);
}

#[tokio::test]
async fn what_depends_on_the_prompt_is_rendered_for_each() {
    let rig = Rig::new().await;
    let opened = rig.open(json!({})).await;
    rig.engine.says_of_reasoning(false);
    assert_eq!(two_turns(&rig, &opened, &json!({}), user("second")).await, 200);
    rig.engine.says_of_reasoning(true);
    assert_eq!(two_turns(&rig, &opened, &json!({}), user("third")).await, 200);
    assert_eq!(rig.engine.renders(), 4);
    let ended: Vec<_> = rig.engine.requests().iter().map(|asked| asked["reasoning_ended"].clone()).collect();
    assert_eq!(ended, [false, false, true, true]);
}

#[tokio::test]
async fn a_failure_forgets_what_the_server_has_rendered() {
    let rig = Rig::new().await;
    let opened = rig.open(json!({})).await;
    rig.engine.script([says("one"), Reply { status: 500, ..says("no") }, says("two")]);
    assert_eq!(two_turns(&rig, &opened, &json!({}), user("second")).await, 200);
    assert_eq!((rig.engine.requests().len(), rig.engine.renders()), (3, 2));
}
