//! The proxy and the fleet's commands as processes, before simulated servers.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::path::Path;

use serde_json::Value;
use support::{Rolldock, Running, Simengine, recipe, shared, wait_for};
use tempfile::TempDir;
use tokio_util::task::TaskTracker;

/// What follows `words` in the output of a process, up to the next space.
fn after(words: &str, process: &Running) -> String {
    wait_for(words, || process.stdout_so_far().contains(words));
    let text = process.stdout_so_far();
    let rest = text.split_once(words).unwrap().1;
    rest.split(['\n', ' ', ',']).next().unwrap().to_owned()
}

struct Proxy {
    process: Running,
    url: String,
    admin: String,
}

impl Proxy {
    fn start(flags: &[&str]) -> Self {
        let command = Rolldock::new(&["proxy", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        let process = flags.iter().fold(command.arg("--admin-token").arg("secret"), Rolldock::arg).start();
        let admin = after("admin at ", &process);
        wait_for("proxy", || process.stdout_so_far().contains(" balances "));
        let text = process.stdout_so_far();
        let url = text.lines().find(|line| line.contains(" balances ")).unwrap().split(' ').next().unwrap();
        Self { url: url.to_owned(), admin, process }
    }

    fn fleet(&self, arguments: &[&str]) -> Rolldock {
        let command = Rolldock::new(&["fleet", "--token", "secret", "--admin", &self.admin]);
        arguments.iter().fold(command, Rolldock::arg)
    }
}

/// Sends a recorded request; status, content type and body.
async fn replay(client: &reqwest::Client, base: &str, recorded: &Value) -> (u16, String, String) {
    let request = &recorded["request"];
    let method: reqwest::Method = request["method"].as_str().unwrap().parse().unwrap();
    let mut call = client.request(method, format!("{base}{}", request["path"].as_str().unwrap()));
    for (name, value) in request["headers"].as_object().unwrap() {
        call = call.header(name, value.as_str().unwrap());
    }
    call = match &request["body"] {
        Value::Null => call,
        Value::String(text) => call.body(text.clone()),
        body => call.json(body),
    };
    let answer = call.send().await.unwrap();
    let status = answer.status().as_u16();
    let kind = answer.headers().get("content-type").map_or("", |kind| kind.to_str().unwrap()).to_owned();
    (status, kind, answer.text().await.unwrap())
}

fn recorded_cases(folder: &Path) -> Vec<(String, Value)> {
    let mut cases = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let Ok(case) = serde_json::from_str::<Value>(&text) else { continue };
        let asked = case["request"]["path"].as_str().unwrap_or_default();
        let is_ours = ["/v1/completions", "/v1/chat/completions", "/inference/v1/generate", "/v1/models"];
        if is_ours.contains(&asked) && case["request"]["headers"].is_object() {
            cases.push((path.file_stem().unwrap().to_str().unwrap().to_owned(), case));
        }
    }
    cases.sort_by(|left, right| left.0.cmp(&right.0));
    cases
}

/// Names of the values in a JSON text, or how a stream of events is made up.
fn shape(text: &str) -> Vec<String> {
    if let Ok(Value::Object(object)) = serde_json::from_str(text) {
        return object.keys().cloned().collect();
    }
    let events = text.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
    let shape = |event: &str| match serde_json::from_str::<Value>(event) {
        Ok(Value::Object(object)) => object.keys().cloned().collect::<Vec<_>>().join(","),
        _ => event.to_owned(),
    };
    let mut shapes: Vec<String> = events.map(shape).collect();
    shapes.dedup();
    shapes
}

#[tokio::test]
async fn recorded_requests_get_the_same_answers_through_the_proxy() {
    let Some(folder) = shared("vllm/captures") else { return };
    let engine = Simengine::start(&["--model", "tiny-qwen3", "--time-scale", "0.001"]);
    let proxy = Proxy::start(&["--endpoint", &engine.url]);
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let cases = recorded_cases(&folder);
    assert!(cases.len() > 30, "{} cases", cases.len());
    for (name, case) in cases {
        let direct = replay(&client, &engine.url, &case).await;
        let proxied = replay(&client, &proxy.url, &case).await;
        assert_eq!((direct.0, &direct.1), (proxied.0, &proxied.1), "{name}");
        assert_eq!(shape(&direct.2), shape(&proxied.2), "{name}");
        if direct.0 >= 400 {
            assert_eq!(direct.2, proxied.2, "{name}");
        }
    }
    proxy.fleet(&["list"]).succeeds();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_is_changed_while_requests_run() {
    let engines = [Simengine::start(&[]), Simengine::start(&["--time-scale", "0.001"])];
    let proxy = Proxy::start(&["--endpoint", &engines[0].url]);
    let name_of = |engine: &Simengine| engine.url.trim_start_matches("http://").to_owned();
    let (first, second) = (name_of(&engines[0]), name_of(&engines[1]));

    let joined = proxy.fleet(&["add", &engines[1].url, "--capacity", "7"]).succeeds().stdout;
    assert!(joined.contains(&format!("{second} joins with 7 permits")), "{joined}");
    let twice = proxy.fleet(&["add", &engines[1].url]).fails(1).stderr;
    assert!(twice.contains("in the fleet already"), "{twice}");
    let bad = proxy.fleet(&["add", "ftp://x"]).fails(1).stderr;
    assert!(bad.contains("expected a base URL like http://host:port"), "{bad}");
    let unknown = proxy.fleet(&["remove", "nobody"]).fails(1).stderr;
    assert!(unknown.contains("unknown server=nobody"), "{unknown}");
    let stranger = Rolldock::new(&["fleet", "list", "--admin", &proxy.admin]).fails(1).stderr;
    assert!(stranger.contains("expected the admin token"), "{stranger}");

    // A request on the first, which is in no hurry.
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let ask = |max_tokens: u32| {
        let body = format!(
            "{{\"model\":\"simulated\",\"prompt\":[1,2],\"max_tokens\":{max_tokens},\"min_tokens\":{max_tokens},\"ignore_eos\":true}}"
        );
        let call =
            client.post(format!("{}/v1/completions", proxy.url)).header("content-type", "application/json");
        call.body(body).send()
    };
    proxy.fleet(&["pause", &second]).succeeds();
    let slow = TaskTracker::new().spawn(ask(200));
    wait_for("request", || proxy.fleet(&["list", "--json"]).succeeds().stdout.contains("\"in_use\":1"));
    proxy.fleet(&["resume", &second]).succeeds();
    let waited = proxy.fleet(&["drain", &first, "--wait", "0"]).fails(1).stderr;
    assert!(waited.contains("still has 1 samples"), "{waited}");
    for _ in 0..5 {
        assert_eq!(ask(3).await.unwrap().status(), 200);
    }
    let drained = proxy.fleet(&["drain", &first]).succeeds().stdout;
    assert!(drained.contains("is drained"), "{drained}");
    assert_eq!(slow.await.unwrap().unwrap().status(), 200, "what ran was finished");
    proxy.fleet(&["remove", &first]).succeeds();
    let left = proxy.fleet(&["list"]).succeeds().stdout;
    assert!(left.contains(&second) && !left.contains(&first), "{left}");

    let metrics = client.get(format!("{}/metrics", proxy.url)).send().await.unwrap().text().await.unwrap();
    let counted = format!("rolldock_requests_total{{server=\"{second}\",outcome=\"success\"}} 5");
    assert!(metrics.contains(&counted), "{metrics}");
    proxy.process.interrupt();
    let ended = proxy.process.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[test]
fn what_cannot_be_a_proxy_is_refused_in_words() {
    let nothing = Rolldock::new(&["proxy"]).fails(2).stderr;
    assert!(nothing.contains("--endpoint"), "{nothing}");
    let loads = Rolldock::new(&["proxy", "--endpoint", "http://h:1", "--max-loads", "0"]).fails(2).stderr;
    assert!(loads.contains("--max-loads: expected a number above 0, or auto, found \"0\""), "{loads}");
    let scheme = Rolldock::new(&["proxy", "--endpoint", "https://h:1"]).fails(2).stderr;
    assert!(scheme.contains("only http is spoken"), "{scheme}");
    let nobody = Rolldock::new(&["fleet", "list", "--admin", "http://127.0.0.1:9"]).fails(1).stderr;
    assert!(nobody.contains("nobody answers at http://127.0.0.1:9"), "{nobody}");
}

#[test]
fn a_server_joins_a_run_that_is_under_way_and_another_one_leaves() {
    let engines = [Simengine::start(&["--time-scale", "0.05"]), Simengine::start(&["--time-scale", "0.05"])];
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("fleet.toml");
    let write = |urls: &[&str]| std::fs::write(&file, format!("endpoints = {urls:?}")).unwrap();
    write(&[&engines[0].url]);
    let run = Rolldock::new(&["run", "--out"]).arg(dir.path().join("run")).arg(recipe("dapo_qwen3_8b.toml"));
    let settings = [
        "model.name=simulated".to_owned(),
        "model.tokenizer=builtin".to_owned(),
        "data.train=../data/arithmetic/train.jsonl".to_owned(),
        "data.validation=../data/arithmetic/validation.jsonl".to_owned(),
        "rollout.train_batch_size=8".to_owned(),
        "rollout.gen_batch_size=16".to_owned(),
        "rollout.samples_per_prompt=2".to_owned(),
        "rollout.max_response_length=256".to_owned(),
        "filter.enable=false".to_owned(),
        "queue.durability=none".to_owned(),
        "queue.on_full=drop_oldest".to_owned(),
        "fleet.admin=127.0.0.1:0".to_owned(),
        format!("fleet.file={}", file.display()),
    ];
    let run = run.arg("--endpoint").arg(&engines[0].url);
    let run = settings.iter().fold(run, |run, setting| run.set(setting)).start();
    let admin = after("fleet's admin at ", &run);
    let list = || Rolldock::new(&["fleet", "list", "--json", "--admin", &admin]).succeeds().stdout;
    let answers = |engine: &Simengine| -> u64 {
        let fleet: Value = serde_json::from_str(&list()).unwrap();
        let name = engine.url.trim_start_matches("http://");
        let servers = fleet["servers"].as_array().unwrap();
        let found = servers.iter().find(|server| server["name"] == *name);
        found.map_or(0, |server| server["outcomes"]["success"].as_u64().unwrap())
    };
    wait_for("answer of the first server", || answers(&engines[0]) > 0);
    write(&[&engines[0].url, &engines[1].url]);
    wait_for("answer of the second server", || answers(&engines[1]) > 0);
    write(&[&engines[1].url]);
    wait_for("first server to leave", || !list().contains(engines[0].url.trim_start_matches("http://")));
    let before = answers(&engines[1]);
    wait_for("more answers of the second server", || answers(&engines[1]) > before);
    run.interrupt();
    let ended = run.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(!ended.stderr.contains("sample_attempts_max"), "{}", ended.stderr);
}
