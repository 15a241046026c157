use serde_json::{Value, json};

use super::{Assistant, Message, for_template, tools_for_template};

fn assistant(value: Value) -> Assistant {
    Message::read(&value).unwrap().assistant.unwrap()
}

fn call(id: &str, arguments: Value) -> Value {
    json!({ "id": id, "type": "function", "function": { "name": "add", "arguments": arguments } })
}

fn emitted() -> Assistant {
    assistant(json!({
        "role": "assistant", "content": null, "reasoning": "two and two\n",
        "tool_calls": [call("call-1", json!("{\"b\": 2.0, \"a\": [1]}"))],
    }))
}

#[test]
fn what_agents_do_to_a_message_leaves_it_the_same() {
    for returned in [
        json!({ "role": "assistant", "content": "", "tool_calls": [call("call-1", json!("{\"a\":[1],\"b\":2}"))] }),
        json!({ "role": "assistant", "tool_calls": [call("other", json!({ "a": [1], "b": 2 }))] }),
        json!({ "role": "assistant", "content": [], "reasoning_content": "two and two",
                "tool_calls": [call("call-1", json!(" {\"a\": [1], \"b\": 2} "))] }),
    ] {
        assert!(emitted().may_return_as(&assistant(returned.clone())), "{returned}");
    }
}

#[test]
fn an_edited_message_is_another_message() {
    for edited in [
        json!({ "role": "assistant", "content": "no", "tool_calls": [call("call-1", json!("{\"a\":[1],\"b\":2}"))] }),
        json!({ "role": "assistant", "tool_calls": [call("call-1", json!("{\"a\":[1],\"b\":3}"))] }),
        json!({ "role": "assistant", "tool_calls": [] }),
        json!({ "role": "assistant", "reasoning": "another thought",
                "tool_calls": [call("call-1", json!("{\"a\":[1],\"b\":2}"))] }),
    ] {
        assert!(!emitted().may_return_as(&assistant(edited.clone())), "{edited}");
    }
}

#[test]
fn a_list_of_one_text_is_that_text() {
    let of = |value: Value| Message::read(&value).unwrap().json;
    let plain = of(json!({ "role": "user", "content": "1 + 1" }));
    assert_eq!(of(json!({ "content": [{ "type": "text", "text": "1 + 1" }], "role": "user" })), plain);
    assert_eq!(of(json!({ "role": "user", "content": "1 + 1", "name": null })), plain);
    assert_ne!(of(json!({ "role": "user", "content": "1 + 1 " })), plain);
}

#[test]
fn what_is_no_message_is_refused() {
    for (value, expected) in [
        (json!("hello"), "expected an object"),
        (json!({ "content": "x" }), "expected a role"),
        (json!({ "role": "user", "content": 3 }), "expected a content"),
        (json!({ "role": "assistant", "tool_calls": [{ "function": {} }] }), "expected a name"),
    ] {
        let reason = Message::read(&value).unwrap_err();
        assert!(reason.starts_with(expected), "{reason}");
    }
}

#[test]
fn templates_get_texts_and_objects() {
    let message = json!({
        "role": "assistant", "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }],
        "reasoning": "r", "refusal": null, "tool_calls": [call("c", json!("{\"a\": 1}"))],
    });
    let prepared = for_template(&message);
    assert_eq!(prepared["content"], "a\nb");
    assert_eq!(prepared["reasoning_content"], "r");
    assert_eq!(prepared["tool_calls"][0]["function"]["arguments"], json!({ "a": 1 }));
    assert!(prepared.get("refusal").is_none());
    assert_eq!(for_template(&json!({ "role": "assistant" }))["content"], "");
}

#[test]
fn templates_get_tools_in_the_order_of_servers() {
    let tools: Value = serde_json::from_str(
        r#"[{"function": {"strict": true, "parameters": {"b": 1, "a": 2}, "name": "f"}, "x": 1, "type": "function"}]"#,
    )
    .unwrap();
    let expected =
        r#"[{"type":"function","function":{"name":"f","parameters":{"b":1,"a":2},"strict":true},"x":1}]"#;
    assert_eq!(tools_for_template(&tools).to_string(), expected);
}
