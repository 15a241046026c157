//! The endpoints for agents: against the recorded traffic of a real server, and against each other.

use super::recorded::{capture, captures, shape_differences};
use super::*;
use crate::Script;

/// A tag of a call in pieces that no tokenizer would choose.
const CALL: [&str; 9] = [
    "<t",
    "ool_ca",
    "ll>",
    "\n{\"na",
    "me\": \"ad",
    "d\", \"argu",
    "ments\": {\"a\": 1}",
    "}\n</to",
    "ol_call>",
];

/// A server whose model follows a script, with the tokenizer of `json`.
async fn scripted(json: &[u8], script: &Value) -> Fixture {
    let text = TextCodec::from_json(json).unwrap();
    let script = Script::from_json(&serde_json::to_vec(script).unwrap(), &text).unwrap();
    let eos_id = script.end_id().unwrap();
    let workload = WorkloadConfig { eos_id, vocab_size: text.vocab_size(), ..WorkloadConfig::default() };
    let (tracker, cancel) = (TaskTracker::new(), CancellationToken::new());
    let workload = Arc::new(Workload::new(workload));
    let server = SimServer::start(small(), workload, Arc::new(script), &tracker, cancel.clone()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = serve(server.clone(), Arc::new(text), listener, 0, &tracker, cancel.clone()).unwrap();
    let (base, client) = (format!("http://{addr}"), reqwest::Client::new());
    Fixture { server, base, client, _cancel: cancel.drop_guard() }
}

async fn builtin_scripted() -> Fixture {
    let json = include_bytes!("../../../../data/tokenizer/tokenizer.json");
    let script = json!({ "end": "<|im_end|>", "turns": [{ "pieces": CALL }, { "pieces": ["do", "ne"] }] });
    scripted(json, &script).await
}

fn tools() -> Value {
    json!([{ "type": "function", "function": { "name": "add", "parameters": { "type": "object" } } }])
}

/// Generates from what was rendered, and derenders. Returns the tokens and the chat completion.
async fn turn(fixture: &Fixture, chat: &Value) -> (Value, Value) {
    let (status, rendered) = fixture.post("/v1/chat/completions/render", chat).await;
    assert_eq!(status, 200, "{rendered}");
    let mut params = rendered["sampling_params"].clone();
    params["logprobs"] = json!(0);
    let ask = json!({ "token_ids": rendered["token_ids"], "sampling_params": params });
    let (status, mut generated) = fixture.post("/inference/v1/generate", &ask).await;
    assert_eq!(status, 200, "{generated}");
    generated["prompt_token_ids"] = rendered["token_ids"].clone();
    let derender = json!({ "generate_response": generated, "prompt_token_ids": rendered["token_ids"],
        "prompt_tokens": rendered["token_ids"].as_array().unwrap().len(), "chat_request": chat });
    let (status, completion) = fixture.post("/v1/chat/completions/derender", &derender).await;
    assert_eq!(status, 200, "{completion}");
    (generated["choices"][0]["token_ids"].clone(), completion)
}

#[tokio::test]
async fn prompts_and_parameters_are_the_recorded_ones() {
    let Some(folder) = captures() else { return };
    let tokenizer = std::fs::read(folder.join("../tokenizer/tokenizer.json")).unwrap();
    let script = json!({ "end": "<|im_end|>", "turns": [{ "ids": [1] }] });
    let fixture = scripted(&tokenizer, &script).await;
    let recorded = capture(&folder, "agent_endpoints.json");
    let mut compared = 0;
    for exchange in recorded.as_array().unwrap() {
        if !exchange["path"].as_str().unwrap().ends_with("/render") {
            continue;
        }
        let (status, mut ours) = fixture.post("/v1/chat/completions/render", &exchange["request"]).await;
        assert_eq!(status, 200, "{ours}");
        let mut theirs = exchange["response"].clone();
        for answer in [&mut ours, &mut theirs] {
            let id = answer["request_id"].as_str().unwrap().strip_prefix("chatcmpl-").unwrap();
            assert_eq!(id.len(), 16);
            answer["request_id"] = Value::Null;
        }
        assert_eq!(ours.to_string(), theirs.to_string());
        compared += 1;
    }
    assert!(compared >= 6, "{compared}");
}

#[tokio::test]
async fn derendered_messages_are_the_recorded_ones() {
    let Some(folder) = captures() else { return };
    let tokenizer = std::fs::read(folder.join("../tokenizer/tokenizer.json")).unwrap();
    let script = json!({ "end": "<|im_end|>", "turns": [{ "ids": [1] }] });
    let fixture = scripted(&tokenizer, &script).await;
    let recorded = capture(&folder, "agent_endpoints.json");
    let mut compared = 0;
    for exchange in recorded.as_array().unwrap() {
        if !exchange["path"].as_str().unwrap().ends_with("/derender") {
            continue;
        }
        let (status, mut ours) = fixture.post("/v1/chat/completions/derender", &exchange["request"]).await;
        let theirs = &exchange["response"];
        if let Some(refused) = theirs["HTTP"].as_u64() {
            assert_eq!(u64::from(status), refused);
            assert_eq!(ours.to_string(), theirs["body"].as_str().unwrap());
            continue;
        }
        assert_eq!(status, 200, "{ours}");
        ours["created"] = theirs["created"].clone();
        ours["model"] = theirs["model"].clone();
        let ids = (0..8).map(|place| format!("/choices/0/message/tool_calls/{place}/id"));
        for id in ids {
            if let (Some(mine), Some(other)) = (ours.pointer_mut(&id), theirs.pointer(&id)) {
                assert_eq!(mine.as_str().unwrap().len(), other.as_str().unwrap().len());
                *mine = other.clone();
            }
        }
        assert_eq!(ours, *theirs);
        let mut differences = Vec::new();
        shape_differences(&ours, theirs, "derender", &mut differences);
        assert!(differences.is_empty(), "{differences:#?}");
        compared += 1;
    }
    assert!(compared >= 4, "{compared}");
}

#[tokio::test]
async fn a_scripted_call_is_rendered_generated_and_derendered() {
    let fixture = builtin_scripted().await;
    let mut chat = json!({ "model": "tiny-qwen3", "messages": [{ "role": "user", "content": "hi" }],
        "tools": tools(), "max_tokens": 64 });
    let (tokens, completion) = turn(&fixture, &chat).await;
    let choice = &completion["choices"][0];
    assert_eq!(choice["finish_reason"], "stop", "derender never says tool_calls");
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(call["function"], json!({ "name": "add", "arguments": "{\"a\": 1}" }));
    assert_eq!(choice["message"]["content"], Value::Null);
    let text = CALL.concat();
    let (_, whole) = fixture.post("/tokenize", &json!({ "prompt": text })).await;
    assert_ne!(whole["tokens"], tokens, "a client that encodes the text anew gets other tokens");

    let mut answer = choice["message"].clone();
    answer["content"] = json!("");
    let result = json!({ "role": "tool", "tool_call_id": call["id"], "content": "2" });
    chat["messages"].as_array_mut().unwrap().extend([answer, result]);
    let (_, completion) = turn(&fixture, &chat).await;
    assert_eq!(completion["choices"][0]["message"]["content"], "done<|im_end|>", "special tokens are kept");
    assert!(completion["choices"][0]["message"].get("tool_calls").is_none());
}

#[tokio::test]
async fn all_interfaces_say_the_same_call() {
    let fixture = builtin_scripted().await;
    let chat = json!({ "messages": [{ "role": "system", "content": "s" }, { "role": "user", "content": "hi" }],
        "tools": tools(), "max_tokens": 64 });
    let (_, completion) = fixture.post("/v1/chat/completions", &chat).await;
    let choice = &completion["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    let function = json!({ "name": "add", "arguments": "{\"a\": 1}" });
    assert_eq!(choice["message"]["tool_calls"][0]["function"], function);

    let schema = json!({ "type": "object" });
    let messages = json!({ "system": "s", "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 64,
        "tools": [{ "name": "add", "input_schema": schema }] });
    let (_, message) = fixture.post("/v1/messages", &messages).await;
    assert_eq!(message["stop_reason"], "tool_use", "{message}");
    assert_eq!(message["content"][0]["input"], json!({ "a": 1 }));

    let responses = json!({ "instructions": "s", "input": "hi", "max_output_tokens": 64,
        "tools": [{ "type": "function", "name": "add", "parameters": schema }] });
    let (_, response) = fixture.post("/v1/responses", &responses).await;
    assert_eq!(response["output"][0]["type"], "function_call", "{response}");
    assert_eq!(response["output"][0]["arguments"], "{\"a\": 1}");
    assert_eq!(response["usage"]["output_tokens"], completion["usage"]["completion_tokens"]);

    let (_, by_chat) = fixture.post("/v1/chat/completions/render", &chat).await;
    let (_, by_messages) = fixture.post("/v1/messages/render", &messages).await;
    let (_, by_responses) = fixture.post("/v1/responses/render", &responses).await;
    assert_eq!(by_chat["token_ids"], by_messages["token_ids"]);
    assert_eq!(by_chat["token_ids"], by_responses["token_ids"]);
    assert!(by_responses["request_id"].as_str().unwrap().starts_with("resp_"));
}

#[tokio::test]
async fn histories_of_all_interfaces_give_one_prompt() {
    let fixture = builtin_scripted().await;
    let call =
        json!({ "id": "c", "type": "function", "function": { "name": "add", "arguments": "{\"a\":1}" } });
    let chat = json!({ "tools": tools(), "messages": [{ "role": "user", "content": "hi" },
        { "role": "assistant", "content": "see", "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "c", "content": "2" }] });
    let messages = json!({ "max_tokens": 5, "tools": [{ "name": "add", "input_schema": { "type": "object" } }],
        "messages": [{ "role": "user", "content": "hi" },
        { "role": "assistant", "content": [{ "type": "text", "text": "see" },
            { "type": "tool_use", "id": "c", "name": "add", "input": { "a": 1 } }] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "c",
            "content": [{ "type": "text", "text": "2" }] }] }] });
    let responses = json!({ "tools": [{ "type": "function", "name": "add", "parameters": { "type": "object" } }],
        "input": [{ "role": "user", "content": "hi" },
        { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "see" }] },
        { "type": "function_call", "call_id": "c", "name": "add", "arguments": "{\"a\": 1}" },
        { "type": "function_call_output", "call_id": "c", "output": "2" }] });
    let mut prompts = Vec::new();
    for (path, body) in [("chat/completions", &chat), ("messages", &messages), ("responses", &responses)] {
        let (status, rendered) = fixture.post(&format!("/v1/{path}/render"), body).await;
        assert_eq!(status, 200, "{rendered}");
        prompts.push(rendered["token_ids"].clone());
    }
    assert_eq!(prompts[0], prompts[1]);
    assert_eq!(prompts[0], prompts[2]);
}

#[tokio::test]
async fn a_completion_is_rendered_generated_and_derendered() {
    let fixture = builtin_scripted().await;
    let ask = json!({ "prompt": "hello", "logprobs": 0, "max_tokens": 64 });
    let (status, rendered) = fixture.post("/v1/completions/render", &ask).await;
    assert_eq!(status, 200, "{rendered}");
    let [rendered] = rendered.as_array().unwrap().as_slice() else { panic!("{rendered}") };
    let generate =
        json!({ "token_ids": rendered["token_ids"], "sampling_params": rendered["sampling_params"] });
    let (_, generated) = fixture.post("/inference/v1/generate", &generate).await;
    let derender =
        json!({ "generate_responses": [generated], "prompt_tokens": [2], "completion_request": ask });
    let (status, completion) = fixture.post("/v1/completions/derender", &derender).await;
    assert_eq!(status, 200, "{completion}");
    let choice = &completion["choices"][0];
    assert_eq!(choice["text"], CALL.concat());
    let tokens = generated["choices"][0]["token_ids"].as_array().unwrap().len();
    assert_eq!(choice["logprobs"]["tokens"].as_array().unwrap().len(), tokens);
    assert_eq!(completion["usage"]["total_tokens"], tokens + 2);
    let (_, rendered) = fixture.post("/v1/completions/render", &json!({ "prompt": [[5], [6]] })).await;
    assert_eq!(rendered[1]["sampling_params"]["max_tokens"], 16);
    assert!(rendered[1]["request_id"].as_str().unwrap().ends_with("-1"));
}

/// Offsets count code points, as recorded from a real server in `completions_stop_token_id.json`.
#[tokio::test]
async fn text_offsets_count_code_points() {
    let json = include_bytes!("../../../../data/tokenizer/tokenizer.json");
    let script =
        json!({ "end": "<|im_end|>", "turns": [{ "pieces": ["caf\u{e9} ", "\u{4f60}\u{597d}", "!"] }] });
    let fixture = scripted(json, &script).await;
    let mut ask = json!({ "prompt": "hello", "logprobs": 0, "max_tokens": 64 });
    let (_, whole) = fixture.post("/v1/completions", &ask).await;
    let logprobs = &whole["choices"][0]["logprobs"];
    let mut offset = 0;
    let tokens = logprobs["tokens"].as_array().unwrap();
    for (token, found) in tokens.iter().zip(logprobs["text_offset"].as_array().unwrap()) {
        assert_eq!(found, offset, "{token} in {logprobs}");
        offset += token.as_str().unwrap().chars().count();
    }
    assert!(tokens.iter().any(|token| !token.as_str().unwrap().is_ascii()), "{logprobs}");
    ask["stream"] = json!(true);
    let (_, text) = fixture.post("/v1/completions", &ask).await;
    let events = text.as_str().unwrap().split("\n\n").filter_map(|event| event.strip_prefix("data: {"));
    let offsets = events.flat_map(|event| {
        let event: Value = serde_json::from_str(&format!("{{{event}")).unwrap();
        event["choices"][0]["logprobs"]["text_offset"].as_array().unwrap().clone()
    });
    assert_eq!(Value::Array(offsets.collect()), logprobs["text_offset"]);
}

#[tokio::test]
async fn refusals_of_the_endpoints_for_agents() {
    let fixture = builtin_scripted().await;
    let hi = json!([{ "role": "user", "content": "hi" }]);
    for (path, body, said) in [
        ("/v1/messages", json!({ "messages": hi, "max_tokens": 5, "stream": true }), "stream"),
        ("/v1/messages/render", json!({ "messages": hi }), "Field required"),
        ("/v1/responses", json!({ "input": "hi", "stream": true }), "stream"),
        (
            "/v1/responses/render",
            json!({ "input": "hi", "previous_response_id": "resp_1" }),
            "previous_response_id",
        ),
        ("/v1/responses/render", json!({ "input": [{ "type": "web_search" }] }), "web_search"),
        (
            "/v1/chat/completions/render",
            json!({ "messages": hi, "tool_choice": "auto" }),
            "`tools` must be set",
        ),
        (
            "/v1/chat/completions/derender",
            json!({ "generate_response": { "request_id": "r", "choices": [{ "index": 0, "token_ids": [5] }] } }),
            "chat_request is required",
        ),
    ] {
        let (status, answer) = fixture.post(path, &body).await;
        assert_eq!(status, 400, "{path}: {answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(said), "{path}: {message}");
    }
    let closed = start(ServerConfig { scale_out: false, ..small() }).await;
    let (status, _) = closed.post("/v1/chat/completions/render", &json!({ "messages": hi })).await;
    assert_eq!(status, 403);
}
