//! Compares bodies, statuses and metrics with the recorded traffic of a real server.

use std::path::{Path, PathBuf};

use super::*;

pub(super) fn captures() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/vllm/captures");
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("skipped: no recorded traffic of a real server at {}", folder.display());
    None
}

pub(super) fn capture(folder: &Path, name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join(name)).unwrap()).unwrap()
}

/// Finds the paths at which two documents differ in keys or types. A null matches everything, because the
/// real server leaves many values empty.
pub(super) fn shape_differences(ours: &Value, theirs: &Value, at: &str, found: &mut Vec<String>) {
    match (ours, theirs) {
        (Value::Null, _) | (_, Value::Null) => {}
        (Value::Object(_), Value::Object(_)) if at.ends_with(".logprobs.top_logprobs[0]") => {}
        (Value::Object(mine), Value::Object(other)) => {
            let my_keys: Vec<&String> = mine.keys().collect();
            let other_keys: Vec<&String> = other.keys().collect();
            if my_keys != other_keys {
                found.push(format!("{at}: keys {my_keys:?} instead of {other_keys:?}"));
                return;
            }
            for (key, value) in mine {
                shape_differences(value, &other[key], &format!("{at}.{key}"), found);
            }
        }
        (Value::Array(mine), Value::Array(other)) => {
            if let (Some(first), Some(other_first)) = (mine.first(), other.first()) {
                shape_differences(first, other_first, &format!("{at}[0]"), found);
            }
        }
        (Value::String(_), Value::String(_))
        | (Value::Bool(_), Value::Bool(_))
        | (Value::Number(_), Value::Number(_)) => {}
        _ => found.push(format!("{at}: {ours} instead of {theirs}")),
    }
}

async fn replay(fixture: &Fixture, recorded: &Value) -> (u16, Value) {
    let request = &recorded["request"];
    let path = request["path"].as_str().unwrap();
    let method: reqwest::Method = request["method"].as_str().unwrap().parse().unwrap();
    let mut call = fixture.client.request(method, format!("{}{path}", fixture.base));
    for (name, value) in request["headers"].as_object().unwrap() {
        call = call.header(name, value.as_str().unwrap());
    }
    call = match &request["body"] {
        Value::Null => call,
        Value::String(text) => call.body(text.clone()),
        body => call.json(body),
    };
    let response = call.send().await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

#[tokio::test]
async fn answers_have_the_recorded_keys_in_the_recorded_order() {
    let Some(folder) = captures() else { return };
    let fixture = start(small()).await;
    let names = [
        "chat_max_completion_tokens",
        "chat_n2",
        "completions_batch_prompts",
        "completions_minimal",
        "completions_stop_token_id",
        "completions_tokens_as_ids",
        "completions_tokens_n4",
        "detokenize",
        "generate_bad_sp",
        "generate_basic",
        "generate_empty_sp",
        "generate_noheader",
        "generate_text",
        "health",
        "load",
        "models",
        "ping",
        "temp0_seed_none",
        "tokenize",
        "tokenize_chat",
        "unknown_field",
        "version",
    ];
    for name in names {
        let recorded = capture(&folder, &format!("{name}.json"));
        let (status, body) = replay(&fixture, &recorded).await;
        assert_eq!(status, recorded["response"]["status"].as_u64().unwrap() as u16, "{name}: {body}");
        let mut differences = Vec::new();
        shape_differences(&body, &recorded["response"]["body"], name, &mut differences);
        assert!(differences.is_empty(), "{differences:#?}");
        for key in ["id", "request_id"] {
            // The part after the last dash is random unless the client chose the id, so only the part before it
            // is compared.
            if let (Some(ours), Some(theirs)) =
                (body[key].as_str(), recorded["response"]["body"][key].as_str())
            {
                let end = theirs.rfind('-').unwrap();
                assert_eq!(ours[..end], theirs[..end], "{name}");
            }
        }
    }
}

#[tokio::test]
async fn errors_are_the_recorded_ones_to_the_letter() {
    let Some(folder) = captures() else { return };
    // One of the messages contains the size of the recorded model's vocabulary.
    let tracker = TaskTracker::new();
    let cancel = CancellationToken::new();
    let codec: Arc<dyn Codec> = Arc::new(TextCodec::builtin().unwrap());
    let workload = WorkloadConfig { vocab_size: 151_936, ..WorkloadConfig::default() };
    let server = SimServer::start(
        small(),
        Arc::new(Workload::new(workload)),
        Arc::new(NoAnswers),
        &tracker,
        cancel.clone(),
    )
    .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = serve(server.clone(), codec, listener, 0, &tracker, cancel.clone()).unwrap();
    let fixture = Fixture {
        server,
        base: format!("http://{addr}"),
        client: reqwest::Client::new(),
        _cancel: cancel.drop_guard(),
    };
    let names = [
        "err_bad_json",
        "err_chat_no_messages",
        "err_content_type",
        "err_empty_prompt",
        "err_generate_too_long",
        "err_logprobs_negative",
        "err_logprobs_too_large",
        "err_max_tokens_too_large",
        "err_method",
        "err_missing_prompt",
        "err_n_too_large",
        "err_n_zero",
        "err_oov_token",
        "err_prompt_exact_maxlen",
        "err_prompt_too_long",
        "err_temperature_negative",
        "err_unknown_model",
        "err_unknown_path",
        "generate_oov",
        "n_greedy",
    ];
    for name in names {
        let recorded = capture(&folder, &format!("{name}.json"));
        let (status, body) = replay(&fixture, &recorded).await;
        assert_eq!(status, recorded["response"]["status"].as_u64().unwrap() as u16, "{name}: {body}");
        assert_eq!(body, recorded["response"]["body"], "{name}");
    }
}

#[tokio::test]
async fn a_full_queue_is_503_in_the_recorded_words() {
    let fixture = start(ServerConfig { queue_max: Some(2), ..small() }).await;
    let ask = json!({ "model": "tiny-qwen3", "prompt": [1, 2, 3], "n": 3, "max_tokens": 4 });
    let (status, body) = fixture.post("/v1/completions", &ask).await;
    assert_eq!(status, 503);
    assert_eq!(body["error"]["type"], "Service Unavailable");
    if let Some(folder) = captures() {
        assert_eq!(body, capture(&folder, "err_503_queue_full.json")["body"]);
    }
    assert_eq!(fixture.server.stats().rejections_total, 1);
}

#[tokio::test]
async fn streamed_events_have_the_recorded_keys() {
    let Some(folder) = captures() else { return };
    let fixture = start(small()).await;
    for name in ["completions_stream", "chat_stream", "generate_stream"] {
        let recorded = capture(&folder, &format!("{name}.json"));
        let (_, text) = replay(&fixture, &recorded).await;
        let parse = |stream: &str| -> Vec<Value> {
            let events = stream.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
            events
                .filter(|event| *event != "[DONE]")
                .map(|event| serde_json::from_str(event).unwrap())
                .collect()
        };
        let ours = parse(text.as_str().unwrap());
        let theirs = parse(recorded["response"]["body_text"].as_str().unwrap());
        let mut differences = Vec::new();
        shape_differences(&ours[0], &theirs[0], name, &mut differences);
        shape_differences(&ours[1], &theirs[1], name, &mut differences);
        // The event before the usage is the last event of a choice.
        shape_differences(&ours[ours.len() - 2], &theirs[theirs.len() - 2], name, &mut differences);
        assert!(differences.is_empty(), "{differences:#?}");
        assert!(ours[ours.len() - 1]["usage"]["completion_tokens"].is_u64());
    }
}

#[tokio::test]
async fn metrics_have_the_real_names_and_labels() {
    let fixture = start(small()).await;
    let ask = json!({ "token_ids": [1, 2, 3], "sampling_params": { "max_tokens": 5, "ignore_eos": true } });
    fixture.post("/inference/v1/generate", &ask).await;
    let (_, page) = fixture.get("/metrics").await;
    assert!(
        page.contains("vllm:generation_tokens_total{engine=\"0\",model_name=\"tiny-qwen3\"} 5.0"),
        "{page}"
    );
    let Some(folder) = captures() else { return };
    let known = std::fs::read_to_string(folder.join("metric_names.txt")).unwrap();
    for line in page.lines().filter_map(|line| line.strip_prefix("# HELP ")) {
        let name = line.split(' ').next().unwrap();
        assert!(known.lines().any(|real| real.split(' ').next() == Some(name)), "{name}");
    }
}
