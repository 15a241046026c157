use serde_json::json;

use super::*;

fn conversation(messages: Value, tools: Value) -> String {
    let messages: Vec<Message> = serde_json::from_value(messages).unwrap();
    let tools: Vec<Tool> = serde_json::from_value(tools).unwrap();
    render(&messages, &tools, true)
}

#[test]
fn a_conversation_without_tools_is_plain_chatml() {
    let messages = json!([{ "role": "system", "content": "s" },
        { "role": "user", "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }] },
        { "role": "assistant", "content": null }]);
    let text = "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n<|im_start|>assistant\n\
                <|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(conversation(messages, json!([])), text);
}

#[test]
fn calls_and_results_are_turns_of_both_sides() {
    let call = |name: &str, arguments: &str| {
        json!({ "id": "c", "type": "function",
        "function": { "name": name, "arguments": arguments } })
    };
    let messages = json!([{ "role": "user", "content": "u" },
        { "role": "assistant", "content": "see", "tool_calls": [call("f", "{\"x\":1}"), call("g", "oops")] },
        { "role": "tool", "tool_call_id": "c", "content": "1" },
        { "role": "tool", "tool_call_id": "c", "content": "2" }]);
    let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
    let text = conversation(messages, tools);
    assert!(
        text.contains(
            "\n{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": null, \
                           \"parameters\": null}}\n</tools>"
        ),
        "{text}"
    );
    let turns = "<|im_start|>assistant\nsee\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n\
                 </tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": oops}\n</tool_call><|im_end|>\n\
                 <|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>\
                 <|im_end|>\n<|im_start|>assistant\n";
    assert!(text.ends_with(turns), "{text}");
}
