#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod elsewhere;
#[cfg(target_os = "linux")]
mod sandbox;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rolldock_data::TextCodec;
use rolldock_gateway::{CallMeter, Entropy, GatewayConfig, Hosted, Limits, Sampling};
use rolldock_loadbalancer::{BalancerConfig, LoadBalancer, Priority, ServerSpec};
use rolldock_scope::Scope;
use rolldock_simengine::{
    Fault, Script, ServerConfig, SimServer, TextCodec as SimCodec, Workload, WorkloadConfig, http,
};
use rolldock_trajectory::Template;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::{AgentConfig, AgentError, AgentJob, Agents, AgentsParts, Finished, RewardBy, Stage, Watch};

/// Longest time that a test waits for an event.
const PATIENCE: Duration = Duration::from_secs(120);

/// The beginning of each agent's script. It defines `task`, and `chat`, which makes one call with the
/// standard library alone.
const CHAT: &str = r#"
import json, os, signal, subprocess, sys, time, urllib.request
task = json.load(sys.stdin)
def chat(messages):
    body = json.dumps({"model": "any", "messages": messages}).encode()
    headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    call = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    return json.load(urllib.request.urlopen(call))["choices"][0]["message"]
"#;

/// An agent that calls the model twice.
const TWO_TURNS: &str = r#"
messages = task["messages"]
for _ in range(2):
    messages += [chat(messages), {"role": "user", "content": "Go on."}]
"#;

/// Counts what the gateway reports to the run about calls.
#[derive(Debug, Default)]
struct Counts {
    drew: AtomicU64,
    gave_up: AtomicU64,
}

impl CallMeter for Counts {
    fn priority(&self) -> Priority {
        Priority::New
    }

    fn policy_version(&self) -> u64 {
        0
    }

    fn salts_versions(&self) -> bool {
        false
    }

    fn permitted(&self, _waited: Duration) {}

    fn drew(&self, tokens: u64, _time: Duration) {
        self.drew.fetch_add(tokens, Ordering::Relaxed);
    }

    fn gave_up(&self, _after: Duration, _generating: Duration) {
        self.gave_up.fetch_add(1, Ordering::Relaxed);
    }
}

/// The last thing that a sample waited for.
#[derive(Debug, Default)]
struct Stages(parking_lot::Mutex<Option<Stage>>);

impl Watch for Stages {
    fn entered(&self, stage: Stage) {
        *self.0.lock() = Some(stage);
    }
}

struct World {
    scope: Scope,
    server: SimServer,
    url: Arc<str>,
    balancer: LoadBalancer,
    agents: Agents,
    folder: tempfile::TempDir,
    counts: Arc<Counts>,
    stages: Stages,
}

/// Changes that a test makes to the parts of a world.
#[derive(Default)]
struct Changes {
    limits: Limits,
    without_scale_out: bool,
}

impl World {
    async fn new(config: AgentConfig) -> Self {
        Self::with(config, Changes::default()).await
    }

    async fn with(config: AgentConfig, changes: Changes) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let scope = Scope::new();
        let codec = Arc::new(SimCodec::builtin().unwrap());
        let turns = json!([{ "pieces": ["The fi", "rst"] }, { "pieces": ["The se", "cond"] }]);
        let script = serde_json::to_vec(&json!({ "turns": turns })).unwrap();
        let key = Arc::new(Script::from_json(&script, &codec).unwrap());
        let scale_out = !changes.without_scale_out;
        let engine = ServerConfig { time_scale: 0.01, scale_out, ..ServerConfig::default() };
        let workload = Arc::new(Workload::new(WorkloadConfig::default()));
        let (tracker, token) = (scope.tracker(), scope.token());
        let server = SimServer::start(engine, workload, key, tracker, token.clone()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let bound = http::serve(server.clone(), codec, listener, 0, tracker, token.clone()).unwrap();
        let url: Arc<str> = format!("http://{bound}").into();
        let specs = vec![ServerSpec::new("s0", &*url, 8)];
        let balancer = LoadBalancer::new(BalancerConfig::default(), specs).unwrap();
        let template: Arc<dyn Template> = Arc::new(TextCodec::builtin().unwrap());
        let next = AtomicU64::new(1);
        let entropy = Entropy(Arc::new(move || {
            u128::from(next.fetch_add(1, Ordering::Relaxed))
                .wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
        }));
        let mut gateway = GatewayConfig::new("", template, entropy, || 0);
        gateway.agents_reward = config.reward == RewardBy::Agent;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let gateway = Hosted::open(gateway, balancer.clone(), None, listener, &scope).unwrap();
        let out = folder.path().to_owned();
        let parts = AgentsParts { config, gateway, limits: changes.limits, out, scope: scope.clone() };
        let agents = Agents::new(parts);
        Self {
            scope,
            server,
            url,
            balancer,
            agents,
            folder,
            counts: Arc::default(),
            stages: Stages::default(),
        }
    }

    async fn run(&self, uid: &str) -> Result<Finished, AgentError> {
        let task = json!({ "messages": [{ "role": "user", "content": "Say two things." }], "answer": "2" });
        self.run_task(uid, &task).await
    }

    async fn run_task(&self, uid: &str, task: &Value) -> Result<Finished, AgentError> {
        let meter: Arc<dyn CallMeter> = Arc::clone(&self.counts) as Arc<dyn CallMeter>;
        let job = AgentJob {
            uid,
            index: 3,
            seed: 17,
            task,
            prompt: "Say two things.",
            sampling: Sampling::default(),
            deadline: Instant::now() + PATIENCE,
            meter,
            watch: &self.stages,
        };
        self.agents.run(job).await
    }

    /// Waits for something that another task or process does.
    async fn until(&self, what: &str, look: impl Fn() -> bool) {
        let looking = async {
            while !look() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, looking).await.unwrap_or_else(|_| panic!("never: {what}"));
    }

    /// Checks that nothing of an agent is left.
    async fn until_quiet(&self) {
        self.until("the permits return", || self.balancer.snapshot().in_use() == 0).await;
        self.until("the trajectories are gone", || self.agents.gateway().trajectories() == 0).await;
        self.until("the places are free", || self.agents.free_places() == 64).await;
    }
}

fn python(script: &str) -> AgentConfig {
    let words = ["python3", "-c", &format!("{CHAT}{script}")].map(str::to_owned).to_vec();
    AgentConfig { command: Some(words), ..AgentConfig::default() }
}

/// Whether a process runs. A process that has ended does not run, even if its parent has not waited for it
/// yet.
fn lives(process: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.trim())).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

fn reason(result: Result<Finished, AgentError>) -> String {
    result.unwrap_err().to_string()
}

#[tokio::test]
async fn an_agent_makes_a_trajectory() {
    let world = World::new(python(TWO_TURNS)).await;
    world.agents.check(&[Arc::clone(&world.url)]).await.unwrap();
    let finished = world.run("t-1").await.unwrap();
    assert_eq!((finished.end, finished.is_truncated, finished.reward), ("done", false, None));
    let taken = finished.taken;
    let codec = TextCodec::builtin().unwrap();
    let texts: Vec<String> =
        taken.trajectory.turns().map(|turn| Template::decode(&codec, turn.sampled_ids())).collect();
    assert!(texts[0].contains("The first") && texts[1].contains("The second"), "{texts:?}");
    assert_eq!(taken.trajectory.rows().len(), 1, "the second turn continues the first");
    let sampled: u64 = taken.trajectory.turns().map(|turn| turn.sampled_ids().len() as u64).sum();
    assert_eq!((taken.drawn_tokens, world.counts.drew.load(Ordering::Relaxed)), (sampled, sampled));
    assert_eq!(world.server.stats().generation_tokens_total, sampled, "the engine counts the same");
    assert_eq!((taken.server.as_str(), taken.reencoded.len()), ("s0", 0));
    world.until_quiet().await;
    assert!(!world.folder.path().join("agents").exists(), "an agent that ends well leaves no file");
    world.scope.close(PATIENCE).await;
}

#[tokio::test]
async fn the_task_and_the_variables_reach_the_agent() {
    let script = r#"
assert task["answer"] == "2" and task["sample"] == 3 and task["seed"] == 17, task
assert task["base_url"] == os.environ["OPENAI_BASE_URL"] == os.environ["ANTHROPIC_BASE_URL"] + "/v1"
assert os.environ["ANTHROPIC_API_KEY"] == task["api_key"] and os.environ["ROLLDOCK_TRAJECTORY"] == "t-1"
assert "127.0.0.1" in os.environ["NO_PROXY"].split(",") and "reward_url" not in task
assert (os.environ["MINE"], sys.argv[1]) == ("1", "to Say two things.!"), sys.argv
chat(task["messages"])
"#;
    let mut config = python(script);
    config.command.iter_mut().for_each(|words| words.push("to {prompt}!".to_owned()));
    config.env.insert("MINE".to_owned(), "1".to_owned());
    let world = World::new(config).await;
    world.run("t-1").await.unwrap();
}

#[tokio::test]
async fn each_bad_end_has_its_reason() {
    let dies = "chat(task['messages'])\nprint('about', file=sys.stderr)\nsys.exit('to fail')";
    let killed = "chat(task['messages'])\nos.kill(os.getpid(), signal.SIGKILL)";
    for (script, expected) in [
        (dies, "exit status: 1; its output ends with: about | to fail (see "),
        (killed, "signal: 9"),
        ("pass", "the agent ended without a whole answer of the model"),
        ("time.sleep(1000)", "within agent.deadline=3 s"),
    ] {
        let mut config = python(script);
        if script.starts_with("time") {
            config.deadline = 3.0;
        }
        let world = World::new(config).await;
        let reason = reason(world.run("t-1").await);
        assert!(reason.contains(expected), "{reason}");
        world.until_quiet().await;
        let file = world.folder.path().join("agents").join("t-1.log");
        assert_eq!(file.exists(), script == dies);
        if file.exists() {
            assert!(std::fs::read_to_string(file).unwrap().contains("to fail"));
        }
    }
}

#[tokio::test]
async fn a_limit_ends_an_agent_with_what_it_has() {
    // The agent ends with an error, because its second call is refused.
    let limits = Limits { turns: 1, ..Limits::default() };
    for by in [RewardBy::Scorer, RewardBy::Agent] {
        let config = AgentConfig { reward: by, ..python(TWO_TURNS) };
        let world = World::with(config, Changes { limits: limits.clone(), ..Changes::default() }).await;
        let finished = world.run("t-1").await.unwrap();
        assert_eq!((finished.end, finished.is_truncated), ("turns", true));
        assert_eq!(finished.reward, (by == RewardBy::Agent).then_some(0.0));
        assert_eq!(finished.taken.trajectory.turns().count(), 1);
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_child_does_not_outlive_its_agent() {
    let script = r#"
chat(task["messages"])
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
open("child", "w").write(str(child.pid))
"#;
    let mut config = python(script);
    let place = tempfile::tempdir().unwrap();
    config.directory = Some(place.path().to_owned());
    let world = World::new(config).await;
    world.run("t-1").await.unwrap();
    let child = std::fs::read_to_string(place.path().join("child")).unwrap();
    assert!(!child.is_empty(), "the agent has not started its child");
    // A process that was killed needs a moment to end.
    world.until("the child of the agent ends", || !lives(&child)).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_drop_in_a_call_ends_the_call_and_the_process() {
    let script = r#"
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
open("processes", "w").write(f"{os.getpid()} {child.pid}")
while True:
    try:
        chat(task["messages"])
    except Exception:
        pass
"#;
    let mut config = python(script);
    let place = tempfile::tempdir().unwrap();
    config.directory = Some(place.path().to_owned());
    let world = World::new(config).await;
    world.server.inject(Fault::Stall);
    tokio::select! {
        _ = world.run("t-1") => panic!("the agent ended"),
        () = world.until("a call", || world.server.stats().admitted_total == 1) => {}
    }
    world.until_quiet().await;
    let processes = std::fs::read_to_string(place.path().join("processes")).unwrap();
    world.until("both processes end", || !processes.split(' ').any(lives)).await;
    assert_eq!(world.counts.gave_up.load(Ordering::Relaxed), 1);
}

fn function(place: &Path, body: &str, name: &str, reward: RewardBy) -> AgentConfig {
    let module = format!("{}\n{body}", CHAT.replace("task = json.load(sys.stdin)", ""));
    std::fs::write(place.join("my_agent.py"), module).unwrap();
    AgentConfig {
        python: Some(format!("my_agent:{name}")),
        directory: Some(place.to_owned()),
        reward,
        ..AgentConfig::default()
    }
}

const FUNCTIONS: &str = r#"
def plain(task):
    print(chat(task["messages"]))
    return 0.25
async def later(task):
    return plain(task)
def silent(task):
    chat(task["messages"])
"#;

#[tokio::test]
async fn a_python_function_is_an_agent() {
    let place = tempfile::tempdir().unwrap();
    for (name, by, reward) in [
        ("plain", RewardBy::Agent, Some(0.25)),
        ("later", RewardBy::Agent, Some(0.25)),
        ("plain", RewardBy::Scorer, None),
    ] {
        let world = World::new(function(place.path(), FUNCTIONS, name, by)).await;
        world.agents.check(&[]).await.unwrap();
        assert_eq!(world.run("t-1").await.unwrap().reward, reward, "{name}");
    }
    let world = World::new(function(place.path(), FUNCTIONS, "silent", RewardBy::Agent)).await;
    let reason = reason(world.run("t-1").await);
    assert!(reason.contains("without a reward"), "{reason}");
}

#[tokio::test]
async fn what_cannot_start_is_found_before_the_first_sample() {
    let place = tempfile::tempdir().unwrap();
    let missing = function(place.path(), FUNCTIONS, "absent", RewardBy::Scorer);
    let broken = AgentConfig { python: Some("no_such_module:run".to_owned()), ..AgentConfig::default() };
    let program = AgentConfig { command: Some(vec!["no-such-agent".to_owned()]), ..AgentConfig::default() };
    for (config, key, expected) in [
        (missing, "agent.python", "absent"),
        (broken, "agent.python", "no_such_module"),
        (program, "agent.command", "\"no-such-agent\" in PATH"),
    ] {
        let world = World::new(config).await;
        let error = world.agents.check(&[Arc::clone(&world.url)]).await.unwrap_err().to_string();
        assert!(error.starts_with(key) && error.contains(expected), "{error}");
    }
    let world = World::with(python(""), Changes { without_scale_out: true, ..Changes::default() }).await;
    let error = world.agents.check(&[Arc::clone(&world.url)]).await.unwrap_err().to_string();
    assert!(error.contains("--enable-scale-out"), "{error}");
}

#[test]
fn a_table_names_one_agent() {
    let faults = |text: &str| {
        let config: AgentConfig = toml::from_str(text).unwrap();
        config.faults().into_iter().map(|(key, _)| key).collect::<Vec<_>>()
    };
    assert_eq!(faults("python = \"module:function\""), [""; 0]);
    assert_eq!(faults("command = [\"a\"]\nconcurrency = 4096\ndeadline = 0.5"), [""; 0]);
    assert_eq!(faults("command = [\"a\"]\npython = \"m:f\""), ["python"]);
    assert_eq!(faults(""), ["command"]);
    assert_eq!(faults("command = []"), ["command"]);
    assert_eq!(faults("remote = true"), [""; 0]);
    assert_eq!(faults("remote = true\npython = \"m:f\""), ["remote"]);
    assert_eq!(faults("remote = true\nlease = 0\nattempts_max = 0"), ["lease", "attempts_max"]);
    assert_eq!(faults("remote = true\ndirectory = \"/\""), ["directory"]);
    assert_eq!(faults("command = [\"a\"]\nsandbox = \"bubblewrap\"\nreadable = [\"/home\"]"), [""; 0]);
    assert_eq!(
        faults("command = [\"a\"]\nreadable = [\"home\"]\nscratch_mb = 0"),
        ["readable", "readable", "scratch_mb"]
    );
    assert_eq!(faults("remote = true\nsandbox = \"bubblewrap\""), ["sandbox"]);
    assert_eq!(
        faults("python = \"module\"\nconcurrency = 0\ndeadline = -1.0"),
        ["python", "concurrency", "deadline"]
    );
    assert!(toml::from_str::<AgentConfig>("comand = [\"a\"]").is_err());
}
