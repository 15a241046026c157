//! Tests of the proxy and the commands for its fleet as processes, with simulated servers.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::task::TaskTracker;

use crate::support::answers::comparable;
use crate::support::{Rolldock, Running, Simengine, shared, untaken_recipe, wait_for};

/// Waits for `words` in the output of a process, and returns the text after them up to the next space,
/// comma or line end.
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
        Self::of(Rolldock::new(&["proxy"]), flags)
    }

    /// Starts a proxy that may open at most `files_max` files.
    fn with_files(files_max: u32, flags: &[&str]) -> Self {
        Self::of(Rolldock::with_files(files_max, &["proxy"]), flags)
    }

    fn of(command: Rolldock, flags: &[&str]) -> Self {
        let addresses = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--admin-token", "secret"];
        let process = addresses.iter().chain(flags).fold(command, Rolldock::arg).start();
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

fn client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().unwrap()
}

/// A request for exactly `tokens` tokens.
fn asking(client: &reqwest::Client, proxy: &Proxy, tokens: u32) -> reqwest::RequestBuilder {
    let body = serde_json::json!({
        "model": "simulated",
        "prompt": [1, 2],
        "max_tokens": tokens,
        "min_tokens": tokens,
        "ignore_eos": true,
    });
    client.post(format!("{}/v1/completions", proxy.url)).json(&body)
}

/// Sends a recorded request, and returns the status, the content type and the body of the answer. A request
/// without an id gets `id`, because the tokens that the engine draws depend on the id.
async fn replay(client: &reqwest::Client, base: &str, id: &str, recorded: &Value) -> (u16, String, String) {
    let request = &recorded["request"];
    let method: reqwest::Method = request["method"].as_str().unwrap().parse().unwrap();
    let mut call = client.request(method, format!("{base}{}", request["path"].as_str().unwrap()));
    let headers = request["headers"].as_object().unwrap();
    for (name, value) in headers {
        call = call.header(name, value.as_str().unwrap());
    }
    if !headers.contains_key("X-Request-Id") {
        call = call.header("x-request-id", id);
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
        if case["request"]["headers"].is_object() {
            cases.push((path.file_stem().unwrap().to_str().unwrap().to_owned(), case));
        }
    }
    cases.sort_by(|left, right| left.0.cmp(&right.0));
    cases
}

/// Paths that the proxy answers itself, for all of its servers.
const OWN: [&str; 3] = ["/health", "/ping", "/metrics"];
/// Paths that the proxy hides from clients: it answers 404.
const HIDDEN: [&str; 4] = ["/is_paused", "/load", "/openapi.json", "/server_info?config_format=json"];
/// Control paths, which the proxy refuses with 403.
const CONTROL: [&str; 2] = ["/pause?mode=keep", "/resume"];

#[tokio::test]
async fn recorded_requests_get_the_same_answers_through_the_proxy() {
    let Some(folder) = shared("vllm/captures") else { return };
    // Two equal servers get the same requests, so their caches have the same prefixes.
    let engine = || Simengine::start(&["--model", "tiny-qwen3", "--time-scale", "0.001"]);
    let (direct, behind) = (engine(), engine());
    let proxy = Proxy::start(&["--endpoint", &behind.url]);
    let client = client();
    let mut compared = 0;
    for (name, case) in recorded_cases(&folder) {
        let path = case["request"]["path"].as_str().unwrap();
        let proxied = replay(&client, &proxy.url, &name, &case).await;
        if OWN.contains(&path) {
            assert_eq!(proxied.0, 200, "{name}");
            continue;
        }
        if HIDDEN.contains(&path) || CONTROL.contains(&path) {
            assert_eq!(proxied.0, if HIDDEN.contains(&path) { 404 } else { 403 }, "{name}");
            continue;
        }
        let direct = replay(&client, &direct.url, &name, &case).await;
        assert_eq!((direct.0, &direct.1), (proxied.0, &proxied.1), "{name}");
        // The proxy itself refuses a request for too many samples, with a text of its own.
        if name != "err_n_too_large" {
            assert_eq!(comparable(&direct.2), comparable(&proxied.2), "{name}");
        }
        compared += 1;
    }
    assert!(compared > 45, "{compared} cases");
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
    let gateway = "http://127.0.0.1:9/pool/a";
    proxy.fleet(&["add", gateway]).succeeds();
    proxy.fleet(&["remove", gateway.trim_start_matches("http://")]).succeeds();
    let unknown = proxy.fleet(&["remove", "nobody"]).fails(1).stderr;
    assert!(unknown.contains("unknown server=nobody"), "{unknown}");
    let stranger = Rolldock::new(&["fleet", "list", "--admin", &proxy.admin]).fails(1).stderr;
    assert!(stranger.contains("expected the admin token"), "{stranger}");

    // A long request runs on the first server.
    let client = client();
    let ask = |max_tokens| asking(&client, &proxy, max_tokens).send();
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

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_finishes_what_runs() {
    let engine = Simengine::start(&[]);
    let proxy = Proxy::start(&["--endpoint", &engine.url]);
    let client = client();
    let slow = TaskTracker::new().spawn(asking(&client, &proxy, 100).send());
    wait_for("request", || proxy.fleet(&["list", "--json"]).succeeds().stdout.contains("\"in_use\":1"));
    proxy.process.terminate();
    let answer = slow.await.unwrap().unwrap();
    assert_eq!(answer.status(), 200);
    let answer: Value = answer.json().await.unwrap();
    assert_eq!(answer["usage"]["completion_tokens"], 100);
    drop(client);
    let ended = proxy.process.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watched_fleet_is_printed_at_most_twice_a_second() {
    let engine = Simengine::start(&["--time-scale", "0.001"]);
    let proxy = Proxy::start(&["--endpoint", &engine.url]);
    let watch = proxy.fleet(&["watch"]).start();
    let said = || watch.stdout_so_far().matches("waiting for a permit").count();
    wait_for("first table", || said() == 1);
    let client = client();
    let began = tokio::time::Instant::now();
    let mut answered = 0;
    while began.elapsed() < Duration::from_millis(1500) || answered < 20 || said() < 2 {
        assert_eq!(asking(&client, &proxy, 1).send().await.unwrap().status(), 200);
        answered += 1;
    }
    let (said, elapsed) = (said(), began.elapsed());
    let at_most = 2 + elapsed.as_millis() as usize / 500;
    assert!(said <= at_most, "{answered} answers, {said} tables in {elapsed:?}, expected at most {at_most}");
    watch.terminate();
    assert_eq!(watch.wait().code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_with_too_many_connections_holds_it_against_no_server() {
    let engine = Simengine::start(&["--time-scale", "0.001"]);
    // The limits of connections are above the limit of files.
    let limits = ["--connections-max", "1000", "--unauthenticated-max", "1000"];
    let options = [&["--endpoint", &engine.url, "--threads", "1"][..], &limits].concat();
    let proxy = Proxy::with_files(64, &options);
    let address = proxy.url.trim_start_matches("http://").to_owned();
    let mut clients = Vec::new();
    for _ in 0..100 {
        clients.push(TcpStream::connect(&address).await.unwrap());
    }
    wait_for("complaint", || proxy.process.stderr_so_far().contains("cannot accept a connection"));
    // The monitor checks the fleet every second, and has no file descriptor left for its checks either.
    tokio::time::sleep(Duration::from_millis(3_500)).await;
    let body = "{\"model\":\"simulated\",\"prompt\":[1,2],\"max_tokens\":1}";
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    // The proxy has closed the connections of the first clients to accept the last ones.
    for client in &mut clients[96..] {
        client.write_all(request.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 503");
    }
    drop(clients);
    let client = client();
    wait_for("room", || proxy.fleet(&["list", "--json"]).succeeds().stdout.contains("\"state\":\"active\""));
    assert_eq!(asking(&client, &proxy, 1).send().await.unwrap().status(), 200);
    let fleet: Value = serde_json::from_str(&proxy.fleet(&["list", "--json"]).succeeds().stdout).unwrap();
    let server = &fleet["servers"][0];
    assert_eq!((&server["outcomes"]["fault"], &server["epoch"]), (&0.into(), &0.into()), "{server}");
    let words = proxy.process.stderr_so_far().matches("cannot accept a connection").count();
    assert!(words <= 2, "the line was printed {words} times in four seconds");
}

#[test]
fn an_invalid_proxy_is_refused_with_a_message() {
    let nothing = Rolldock::new(&["proxy"]).fails(2).stderr;
    assert!(nothing.contains("--endpoint"), "{nothing}");
    let loads = Rolldock::new(&["proxy", "--endpoint", "http://h:1", "--max-loads", "0"]).fails(2).stderr;
    assert!(loads.contains("--max-loads: expected a number above 0, or auto, found \"0\""), "{loads}");
    let scheme = Rolldock::new(&["proxy", "--endpoint", "https://h:1"]).fails(2).stderr;
    assert!(scheme.contains("expected the scheme http"), "{scheme}");
    let deep = Rolldock::new(&["proxy", "--endpoint", "http://h:1/v1"]).fails(2).stderr;
    assert!(deep.contains("expected no /v1"), "{deep}");
    let auto =
        Rolldock::new(&["proxy", "--endpoint", "http://h:1", "--engine", "openai", "--max-loads", "auto"]);
    let auto = auto.fails(2).stderr;
    assert!(auto.contains("--max-loads auto goes by vLLM's metrics"), "{auto}");
    for option in ["--stall", "--request-timeout", "--idle-timeout"] {
        let none = Rolldock::new(&["proxy", "--endpoint", "http://h:1", option, "0"]).fails(2).stderr;
        assert!(none.contains(&format!("{option}: expected seconds, more than 0")), "{none}");
    }
    let with_admin = |admin: &str, flags: &[&str]| {
        let command = ["proxy", "--endpoint", "http://h:1", "--listen", "127.0.0.1:0", "--admin", admin];
        flags.iter().fold(Rolldock::new(&command), Rolldock::arg).fails(1).stderr
    };
    let open = with_admin("0.0.0.0:0", &[]);
    assert!(open.contains("expected an admin token, or a loopback address"), "{open}");
    let empty = with_admin("127.0.0.1:0", &["--admin-token="]);
    assert!(empty.contains("expected an admin token, found an empty one"), "{empty}");
    let placeless = Rolldock::new(&["fleet", "add", "http://h:1", "--capacity", "0"]).fails(2).stderr;
    assert!(placeless.contains("--capacity"), "{placeless}");
    let unreachable = Rolldock::new(&["fleet", "list", "--admin", "http://127.0.0.1:9"]).fails(1).stderr;
    assert!(unreachable.contains("expected an answer at http://127.0.0.1:9: Connection"), "{unreachable}");
    assert_eq!(unreachable.matches("127.0.0.1:9").count(), 1, "{unreachable}");
}

#[test]
fn a_server_joins_a_run_that_is_under_way_and_another_one_leaves() {
    let engines = [Simengine::start(&["--time-scale", "0.05"]), Simengine::start(&["--time-scale", "0.05"])];
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("fleet.toml");
    let write = |urls: &[&str]| std::fs::write(&file, format!("endpoints = {urls:?}")).unwrap();
    write(&[&engines[0].url]);
    let run = Rolldock::new(&["run", "--out"]).arg(dir.path().join("run")).arg(untaken_recipe());
    let settings = [
        "model.name=simulated".to_owned(),
        "model.tokenizer=builtin".to_owned(),
        "data.train=data/arithmetic/train.jsonl".to_owned(),
        "data.validation=data/arithmetic/validation.jsonl".to_owned(),
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
