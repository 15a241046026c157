use serde_json::json;

use super::{begun, step};
use crate::environment::Observation;

#[test]
fn a_reset_is_a_list_of_messages_or_an_object() {
    let message = json!({ "role": "user", "content": "hello" });
    let plain = begun(json!([message])).unwrap();
    assert_eq!((plain.messages, plain.tools), (vec![message.clone()], None));
    let tools = json!([{ "type": "function" }]);
    let with_tools = begun(json!({ "messages": [message], "tools": tools })).unwrap();
    assert_eq!(with_tools.tools, Some(tools));
    for (wrong, expected) in [
        (json!(3), "a list of messages"),
        (json!([]), "at least one message"),
        (json!({}), "messages that are a list"),
        (json!([{ "content": "no role" }]), "messages with a role"),
        (json!({ "messages": [message], "tools": {} }), "tools that are a list"),
    ] {
        let error = begun(wrong.clone()).unwrap_err().to_string();
        assert!(error.contains(expected), "{wrong}: {error}");
    }
}

#[test]
fn a_step_has_messages_or_ids_and_perhaps_a_reward() {
    let message = json!({ "role": "user", "content": "more" });
    let read = step(json!({ "messages": [message], "reward": 0.5, "info": { "a": 1 } })).unwrap();
    assert_eq!(read.observation, Observation::Messages(vec![message.clone()]));
    assert_eq!((read.reward, read.is_done, read.info), (Some(0.5), false, json!({ "a": 1 })));
    assert_eq!(step(json!({ "ids": [1, 2] })).unwrap().observation, Observation::Ids(vec![1, 2]));
    let done = step(json!({ "done": true, "reward": 1 })).unwrap();
    assert!(done.is_done && done.reward == Some(1.0));
    for (wrong, expected) in [
        (json!("done"), "an object"),
        (json!({ "done": 1 }), "true or false"),
        (json!({ "done": true, "reward": "much" }), "a finite number"),
        (json!({ "done": true, "reward": 1e300 }), "a finite number"),
        (json!({}), "found neither"),
        (json!({ "messages": [message], "ids": [1] }), "found both"),
        (json!({ "ids": [-1] }), "a list of token ids"),
        (json!({ "ids": [4_294_967_296_u64] }), "a list of token ids"),
        (json!({ "messages": [] }), "at least one message or id"),
    ] {
        let error = step(wrong.clone()).unwrap_err().to_string();
        assert!(error.contains(expected), "{wrong}: {error}");
    }
}
