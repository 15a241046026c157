//! Every surface gives the same turns, whole and streamed.

use serde_json::{Value, json};

use super::engine::{Reply, says};
use super::rig::{Opened, Rig, numbers, read, said, user};

const CALL: &str = "<think>add them</think>CALL add {\"a\": 1, \"b\": [2.0]};";

/// The data of the events of a stream.
fn events(text: &str) -> Vec<Value> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}

async fn streamed(rig: &Rig, opened: &Opened, path: &str, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = json!(true);
    let answer = rig.call(opened, path, &body).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert!(answer.headers()["content-type"].to_str().unwrap().starts_with("text/event-stream"));
    events(&answer.text().await.unwrap())
}

#[tokio::test]
async fn a_streamed_chat_is_the_whole_one() {
    let rig = Rig::new().await;
    for text in [CALL, "just text", "<think>r</think>and text"] {
        rig.engine.script([says(text), says(text)]);
        let opened = rig.open(json!({})).await;
        let body =
            json!({ "model": "m", "messages": [user("x")], "stream_options": { "include_usage": true } });
        let whole = rig.try_chat(&opened, body.clone()).await.1;
        let chunks = streamed(&rig, &opened, "chat/completions", &body).await;
        let mut message = json!({ "role": "assistant", "content": "" });
        let mut finish = json!(null);
        for delta in chunks.iter().filter_map(|chunk| chunk["choices"].get(0)) {
            for (key, value) in delta["delta"].as_object().unwrap() {
                match value {
                    Value::String(more) if key == "content" => {
                        message[key] = json!(format!("{}{more}", message[key].as_str().unwrap()));
                    }
                    Value::Array(calls) => {
                        let mut call = calls[0].clone();
                        assert_eq!(call.as_object_mut().unwrap().shift_remove("index"), Some(json!(0)));
                        call["id"] = json!("id");
                        message[key] = json!([call]);
                    }
                    value => message[key] = value.clone(),
                }
            }
            if !delta["finish_reason"].is_null() {
                finish = delta["finish_reason"].clone();
            }
        }
        let mut expected = said(&whole);
        if expected["content"].is_null() {
            expected["content"] = json!("");
        }
        if expected["tool_calls"].is_array() {
            expected["tool_calls"][0]["id"] = json!("id");
        }
        assert_eq!(message, expected);
        assert_eq!(finish, whole["choices"][0]["finish_reason"]);
        assert_eq!(chunks.last().unwrap()["usage"], whole["usage"]);
    }
}

/// Two turns on one surface: a tool call, and the answer after its result.
struct Protocol {
    path: &'static str,
    first: Value,
    second: fn(&Value) -> Value,
}

fn tool_schema() -> Value {
    json!({ "type": "object", "properties": { "a": { "type": "integer" } } })
}

fn protocols() -> Vec<Protocol> {
    let function = json!({ "name": "add", "description": "adds", "parameters": tool_schema() });
    let chat = json!({
        "model": "m", "max_tokens": 100, "tools": [{ "type": "function", "function": function }],
        "messages": [{ "role": "system", "content": "be brief" }, user("1 + 2")],
    });
    let messages = json!({
        "model": "m", "max_tokens": 100, "system": "be brief", "messages": [user("1 + 2")],
        "tools": [{ "name": "add", "description": "adds", "input_schema": tool_schema() }],
    });
    let responses = json!({
        "model": "m", "max_output_tokens": 100, "instructions": "be brief", "input": "1 + 2",
        "tools": [{ "type": "function", "name": "add", "description": "adds", "parameters": tool_schema() }],
    });
    vec![
        Protocol {
            path: "chat/completions",
            first: chat,
            second: |answer| {
                let message = said(answer);
                let id = message["tool_calls"][0]["id"].clone();
                json!([message, { "role": "tool", "tool_call_id": id, "content": "3" }])
            },
        },
        Protocol {
            path: "messages",
            first: messages,
            second: |answer| {
                let content = answer["content"].as_array().unwrap();
                assert_eq!(
                    (&content[0]["type"], &answer["stop_reason"]),
                    (&json!("thinking"), &json!("tool_use"))
                );
                let result =
                    json!({ "type": "tool_result", "tool_use_id": content[1]["id"], "content": "3" });
                json!([{ "role": "assistant", "content": content }, { "role": "user", "content": [result] }])
            },
        },
        Protocol {
            path: "responses",
            first: responses,
            second: |answer| {
                let mut items = answer["output"].as_array().unwrap().clone();
                assert_eq!(
                    (&items[0]["type"], &items[1]["type"]),
                    (&json!("reasoning"), &json!("function_call"))
                );
                let id = items[1]["call_id"].clone();
                items.push(json!({ "type": "function_call_output", "call_id": id, "output": "3" }));
                json!(items)
            },
        },
    ]
}

/// The request of the second turn.
fn continued(protocol: &Protocol, answer: &Value) -> Value {
    let mut body = protocol.first.clone();
    let more = (protocol.second)(answer);
    let more = more.as_array().unwrap().clone();
    match protocol.path {
        "responses" => {
            let mut items =
                vec![json!({ "role": "user", "content": [{ "type": "input_text", "text": "1 + 2" }] })];
            items.extend(more);
            body["input"] = json!(items);
        }
        _ => body["messages"].as_array_mut().unwrap().extend(more),
    }
    body
}

#[tokio::test]
async fn all_surfaces_give_the_same_turns() {
    let mut turns = Vec::new();
    for protocol in protocols() {
        let rig = Rig::new().await;
        rig.engine.script([says(CALL), says("it is 3")]);
        let opened = rig.open(json!({})).await;
        let (status, first) =
            read(rig.call(&opened, protocol.path, &protocol.first).send().await.unwrap()).await;
        assert_eq!(status, 200, "{first}");
        let body = continued(&protocol, &first);
        let (status, second) = read(rig.call(&opened, protocol.path, &body).send().await.unwrap()).await;
        assert_eq!(status, 200, "{second}");
        let shown = rig.show(&opened.uid).await;
        assert_eq!(shown["turns_by_origin"], json!({ "started": 1, "spliced": 1 }), "{}", protocol.path);
        // The template shows the ids of calls, which differ between trajectories.
        let prompts: Vec<Vec<u32>> = rig.engine.prompts();
        let path = [prompts[0].clone(), rig.engine.drawn()[0].clone()].concat();
        assert_eq!(prompts[1][..path.len()], path);
        turns.push((prompts, rig.engine.drawn()));
    }
    assert_eq!(turns[0], turns[1]);
    assert_eq!(turns[0], turns[2]);
}

#[tokio::test]
async fn streams_of_messages_and_responses_have_the_whole_answer() {
    let rig = Rig::new().await;
    rig.engine.script([says(CALL), says(CALL)]);
    let opened = rig.open(json!({})).await;
    let all = protocols();
    let events = streamed(&rig, &opened, "messages", &all[1].first).await;
    let names: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let block = ["content_block_start", "content_block_delta", "content_block_stop"];
    let expected = [
        &["message_start"][..],
        &["content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"],
        &block,
        &["message_delta", "message_stop"],
    ];
    assert_eq!(names, expected.concat());
    let input = events.iter().find_map(|event| event["delta"]["partial_json"].as_str()).unwrap();
    assert_eq!(serde_json::from_str::<Value>(input).unwrap(), json!({ "a": 1, "b": [2.0] }));
    assert_eq!(events[names.len() - 2]["delta"]["stop_reason"], "tool_use");

    let events = streamed(&rig, &opened, "responses", &all[2].first).await;
    let numbers: Vec<u64> = events.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    let last = events.last().unwrap();
    assert_eq!(
        (&last["type"], &last["response"]["status"]),
        (&json!("response.completed"), &json!("completed"))
    );
    let done: Vec<&Value> = events
        .iter()
        .filter(|event| event["type"] == "response.output_item.done")
        .map(|event| &event["item"])
        .collect();
    assert_eq!(json!(done), last["response"]["output"]);
}

#[tokio::test]
async fn texts_continue_by_what_was_emitted() {
    let rig = Rig::new().await;
    rig.engine.script([says(" there was"), says("the end")]);
    let opened = rig.open(json!({})).await;
    let ask = async |prompt: Value| {
        let body = json!({ "model": "m", "prompt": prompt, "max_tokens": 20 });
        read(rig.call(&opened, "completions", &body).send().await.unwrap()).await.1
    };
    let first = ask(json!("once")).await;
    assert_eq!(first["choices"][0]["text"], " there was");
    let more = format!("once{} a king, ", first["choices"][0]["text"].as_str().unwrap());
    assert_eq!(ask(json!(more)).await["choices"][0]["text"], "the end");
    let (prompts, drawn) = (rig.engine.prompts(), rig.engine.drawn());
    let path = [prompts[0].clone(), drawn[0].clone()].concat();
    assert_eq!(prompts[1][..path.len()], path);
    ask(json!([5, 6, 7])).await;
    assert_eq!(rig.engine.prompts()[2], [5, 6, 7]);
}

#[tokio::test]
async fn a_stop_string_is_cut_off_the_text() {
    let rig = Rig::new().await;
    let mut reply = says("answer STOP and");
    reply.stop_reason = Some("STOP".to_owned());
    reply.text = reply.text.trim_end_matches('\u{3}').to_owned();
    rig.engine.script([reply.clone(), reply]);
    let opened = rig.open(json!({})).await;
    let body = json!({ "model": "m", "messages": [user("x")], "stop": ["STOP"] });
    let completion = rig.try_chat(&opened, body).await.1;
    assert_eq!(said(&completion)["content"], "answer ");
    assert_eq!(completion["choices"][0]["finish_reason"], "stop");
    let body = json!({ "model": "m", "max_tokens": 9, "messages": [user("x")], "stop_sequences": ["STOP"] });
    let (_, message) = read(rig.call(&opened, "messages", &body).send().await.unwrap()).await;
    assert_eq!(
        (&message["stop_reason"], &message["stop_sequence"]),
        (&json!("stop_sequence"), &json!("STOP"))
    );
}

#[tokio::test]
async fn a_structured_output_is_a_grammar_of_the_engine_and_begins_again_after_an_abort() {
    let schema = json!({ "type": "object", "properties": { "sum": { "type": "integer" } } });
    let named = json!({ "name": "sum", "schema": schema });
    let of_chat = json!({ "type": "json_schema", "json_schema": named });
    let of_responses = json!({ "format": { "type": "json_schema", "name": "sum", "schema": schema } });
    for (path, body) in [
        ("chat/completions", json!({ "model": "m", "messages": [user("x")], "response_format": of_chat })),
        ("responses", json!({ "model": "m", "input": "x", "text": of_responses })),
    ] {
        let rig = Rig::new().await;
        let cut = Reply { finish: "abort", text: "{\"su".to_owned(), ..says("") };
        rig.engine.script([cut, says("{\"sum\": 3}")]);
        let opened = rig.open(json!({})).await;
        let (status, answer) = read(rig.call(&opened, path, &body).send().await.unwrap()).await;
        assert_eq!(status, 200, "{path}: {answer}");
        let requests = rig.engine.requests();
        for request in &requests {
            assert_eq!(request["sampling_params"]["structured_outputs"], json!({ "json": schema }), "{path}");
        }
        // A grammar cannot go on in the middle of an answer.
        assert_eq!((requests.len(), &requests[0]["token_ids"]), (2, &requests[1]["token_ids"]), "{path}");
        rig.complete(&opened.uid, json!({ "reward": 1.0 })).await;
        assert_eq!(numbers(&rig.rows().await, "response_ids", 0), rig.engine.drawn()[1], "{path}");
    }
}

#[tokio::test]
async fn a_slow_turn_is_streamed_after_heartbeats() {
    let rig = Rig::with(|config| config.heartbeat = std::time::Duration::from_millis(20)).await;
    let opened = rig.open(json!({})).await;
    rig.engine.hold();
    let body = json!({ "model": "m", "messages": [user("x")], "stream": true });
    let mut answer = rig.call(&opened, "chat/completions", &body).send().await.unwrap();
    for _ in 0..3 {
        let chunk = answer.chunk().await.unwrap().unwrap();
        assert!(chunk.starts_with(b": heartbeat"), "{chunk:?}");
    }
    rig.engine.go();
    let rest = answer.text().await.unwrap();
    assert!(rest.contains("\"content\":\"ok\"") && rest.ends_with("data: [DONE]\n\n"), "{rest}");
}

#[tokio::test]
async fn several_answers_in_one_request_are_refused_on_every_surface() {
    let rig = Rig::new().await;
    let opened = rig.open(json!({})).await;
    for (path, mut body) in [
        ("chat/completions", json!({ "messages": [user("x")] })),
        ("completions", json!({ "prompt": "x" })),
        ("messages", json!({ "messages": [user("x")], "max_tokens": 9 })),
        ("responses", json!({ "input": "x" })),
    ] {
        for (key, n) in [("n", 2), ("best_of", 3)] {
            body[key] = json!(n);
            let (status, refused) = read(rig.call(&opened, path, &body).send().await.unwrap()).await;
            let words = format!("expected {key}=1, found {n}");
            assert_eq!(status, 400, "{path}: {refused}");
            assert!(refused["error"]["message"].as_str().unwrap().contains(&words), "{path}: {refused}");
            body[key] = json!(1);
        }
        assert_eq!(read(rig.call(&opened, path, &body).send().await.unwrap()).await.0, 200, "{path}");
    }
    assert_eq!(rig.show(&opened.uid).await["turns"], 4);
}
