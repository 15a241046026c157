//! A run and the proxy with real vLLM servers.
//!
//! One server was started with `--enable-scale-out`, the other without. Their model is tiny and random, so
//! no answer is right. Therefore the filter is off and every group is accepted.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::GENERATED;
use crate::support::answers::comparable;
use crate::support::vllm::{Vllm, metric, running_on};
use crate::support::{Rolldock, wait_for, wait_within};

/// The largest number of tokens of a response. Nearly all responses have this length, because the model is
/// random.
const LENGTH_MAX: usize = 64;

pub(super) fn a_run_over_two_servers_uses_both_dialects_and_cancels_its_requests_when_it_stops(
    first: &Vllm,
    second: &Vllm,
) {
    let urls = [first.url.as_str(), second.url.as_str()];
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");

    let run = super::run_over(urls, 2, &out);
    let settings = [
        "rollout.train_batch_size=6",
        "rollout.gen_batch_size=12",
        "rollout.samples_per_prompt=4",
        &format!("rollout.max_response_length={LENGTH_MAX}"),
        "filter.enable=false",
    ];
    let mut running = settings.iter().fold(run, |run, setting| run.set(setting)).start();
    for url in &urls {
        wait_for("request on the engine", || running_on(url) > 0.0);
    }
    wait_within(GENERATED, "first step", || running.stdout_so_far().contains("target reached"));
    assert!(!running.has_ended(), "the second step is under way");
    let ended = running.wait();
    assert_eq!(ended.code, Some(0), "{}\n{}", ended.stdout, ended.stderr);
    assert!(
        ended.stdout.contains("(generate, ") && ended.stdout.contains("(completions, "),
        "{}",
        ended.stdout
    );
    assert!(ended.stdout.contains("done: 2 steps; 12 groups accepted of 24"), "{}", ended.stdout);

    // A step needs six of its twelve groups. The other groups must be cancelled on the engines too.
    let cancelled: u64 = cancelled_groups(&ended.stdout);
    assert!(cancelled > 0, "{}", ended.stdout);
    for url in &urls {
        wait_for("idle engine", || running_on(url) == 0.0);
        assert_eq!(metric(url, "vllm:num_requests_waiting"), 0.0);
    }

    let exported = Rolldock::new(&["queue", "export", "--format", "jsonl"]).arg(&out).succeeds().stdout;
    let rows: Vec<serde_json::Value> =
        exported.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 2 * 6 * 4);
    let servers: BTreeSet<&str> = rows.iter().map(|row| row["server"].as_str().unwrap()).collect();
    assert_eq!(servers.len(), urls.len(), "both took part: {servers:?}");
    for row in &rows {
        let tokens = row["response_ids"].as_array().unwrap().len();
        assert!((1..=LENGTH_MAX).contains(&tokens));
        let logprobs = row["rollout_logprobs"].as_array().unwrap();
        assert_eq!(logprobs.len(), tokens);
        assert!(logprobs.iter().all(|logprob| logprob.as_f64().unwrap() <= 0.0));
    }
}

/// The number of cancelled groups, from "(0 filtered, ..., 12 cancelled, ...)" in the summary.
fn cancelled_groups(stdout: &str) -> u64 {
    let summary = stdout.lines().find(|line| line.starts_with("done: ")).unwrap();
    let words: Vec<&str> = summary.split([' ', ',', '(', ')']).collect();
    let at = words.iter().position(|word| *word == "cancelled").unwrap();
    words[at - 1].parse().unwrap()
}

/// The whole text and the finish reason of each choice of a stream. Single events cannot be compared,
/// because the number of tokens in an event varies.
fn streamed(text: &str) -> Vec<Value> {
    let mut choices: BTreeMap<u64, (String, Value)> = BTreeMap::new();
    for event in comparable(text) {
        for choice in event["choices"].as_array().into_iter().flatten() {
            let said = choices.entry(choice["index"].as_u64().unwrap()).or_default();
            let piece = choice["text"].as_str().or(choice["delta"]["content"].as_str());
            said.0.push_str(piece.unwrap_or_default());
            if !choice["finish_reason"].is_null() {
                said.1 = choice["finish_reason"].clone();
            }
        }
    }
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    choices.into_values().map(|(text, finish)| json!([text, finish])).collect()
}

/// The requests are greedy or seeded, and are sent one after the other to an otherwise idle server. So only
/// the proxy can cause a difference.
#[tokio::main]
pub(super) async fn a_server_says_the_same_through_the_proxy(server: &Vllm) {
    let direct = server.url.as_str();
    let proxy = Rolldock::new(&["proxy", "--listen", "127.0.0.1:0", "--endpoint", direct]).start();
    wait_for("proxy", || proxy.stdout_so_far().contains(" balances "));
    let proxied = proxy.stdout_so_far().split(' ').next().unwrap().to_owned();
    let prompt = json!([9707, 11, 1879, 0, 151_644, 872, 198]);
    let messages = json!([{ "role": "user", "content": "hi" }]);
    let greedy = json!({ "model": "tiny-qwen3", "max_tokens": 16, "temperature": 0 });
    let seeded = json!({ "model": "tiny-qwen3", "max_tokens": 16, "seed": 7, "n": 2 });
    let with = |base: &Value, key: &str, value: &Value| {
        let mut body = base.clone();
        body[key] = value.clone();
        body
    };
    let generate = json!({ "token_ids": prompt, "sampling_params": { "max_tokens": 16, "temperature": 0 } });
    let cases = [
        ("POST", "/v1/completions", with(&greedy, "prompt", &prompt)),
        ("POST", "/v1/completions", with(&seeded, "prompt", &json!([prompt, [9707]]))),
        ("POST", "/v1/completions", with(&with(&greedy, "prompt", &prompt), "stream", &json!(true))),
        ("POST", "/v1/chat/completions", with(&greedy, "messages", &messages)),
        ("POST", "/v1/chat/completions", with(&with(&seeded, "messages", &messages), "stream", &json!(true))),
        ("POST", "/inference/v1/generate", generate),
        ("POST", "/v1/completions", with(&greedy, "prompt", &json!([999_999]))),
        ("POST", "/v1/completions", with(&with(&greedy, "model", &json!("another")), "prompt", &prompt)),
        ("POST", "/tokenize", json!({ "model": "tiny-qwen3", "prompt": "Hello" })),
        ("GET", "/v1/completions", Value::Null),
        ("GET", "/v1/models", Value::Null),
        ("GET", "/version", Value::Null),
        ("GET", "/nope", Value::Null),
    ];
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    for (number, (method, path, body)) in cases.iter().enumerate() {
        let ask = async |base: &str| {
            let call = client.request(method.parse().unwrap(), format!("{base}{path}"));
            let call = call.header("x-request-id", format!("same-{number}"));
            let answer =
                if body.is_null() { call.send().await } else { call.json(body).send().await }.unwrap();
            let status = answer.status().as_u16();
            let text = answer.text().await.unwrap();
            (status, if text.starts_with("data: ") { streamed(&text) } else { comparable(&text) })
        };
        // The first request fills the prefix cache, whose use the answers report.
        ask(direct).await;
        let said = ask(direct).await;
        assert_eq!(said, ask(&proxied).await, "{path} {body}");
    }
    for path in ["/pause?mode=keep", "/sleep", "/collective_rpc"] {
        let refused = client.post(format!("{proxied}{path}")).send().await.unwrap();
        assert_eq!(refused.status(), 403, "{path}");
    }
    let health = client.get(format!("{direct}/is_paused")).send().await.unwrap().text().await.unwrap();
    assert!(health.contains("false"), "{health}");
    drop(client);
    proxy.terminate();
    assert_eq!(proxy.wait().code, Some(0));
}
