//! Tests of runs whose samples are made by agents: real processes, which call simulated servers through the
//! run's gateway.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::metrics::scrape;
use crate::support::{Rolldock, SMALL, Simengine, recipe, wait_for};

/// The code at the beginning of each agent. An agent appends its process id to the file `processes`.
pub(crate) const CHAT: &str = r#"
import json, os, sys, time, urllib.error, urllib.request
with open(os.environ["PROCESSES"], "a") as file:
    file.write(f"{os.getpid()}\n")
def chat(messages):
    body = json.dumps({"model": "any", "messages": messages}).encode()
    headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    call = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    return json.load(urllib.request.urlopen(call))["choices"][0]["message"]
"#;

/// An agent that makes two calls. The second call repeats the first call's messages and answer unchanged.
pub(crate) const TWO_TURNS: &str = r#"
task = json.load(sys.stdin)
messages = task["messages"]
for _ in range(2):
    messages += [chat(messages), {"role": "user", "content": "Are you sure?"}]
"#;

/// An agent that is a function and returns its own reward.
const FUNCTION: &str = r#"
def work(task):
    chat(task["messages"])
    return task["sample"] / 4
"#;

struct Place {
    dir: TempDir,
}

impl Place {
    fn new(agent: &str) -> Self {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join("my_agent.py"), format!("{CHAT}{agent}")).unwrap();
        Self { dir }
    }

    fn out(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    /// A small run of agents.
    fn run(&self, steps: &str) -> Rolldock {
        let agent =
            format!("agent.command=[\"python3\", \"{}\"]", self.dir.path().join("my_agent.py").display());
        self.run_of(&agent, steps)
    }

    fn run_of(&self, agent: &str, steps: &str) -> Rolldock {
        let run =
            Rolldock::new(&["run", "--steps", steps, "--out"]).arg(self.out()).arg(recipe("quickstart.toml"));
        let run = SMALL.iter().fold(run, |run, set| run.set(set));
        let noted = self.dir.path().join("processes");
        let settings = [
            "validation.every_steps=1000",
            "rollout.train_batch_size=2",
            "rollout.gen_batch_size=4",
            "rollout.workers=2",
            "fleet.simulated.transport=http",
            "queue.consumer.keep_last_steps=9",
            "queue.capacity_rows=1000",
        ];
        let run = settings.iter().fold(run, |run, set| run.set(set));
        run.set(agent).set(&format!("agent.env={{PROCESSES=\"{}\"}}", noted.display()))
    }

    /// The ids of the agents' processes that still run.
    fn living(&self) -> Vec<String> {
        let noted = fs::read_to_string(self.dir.path().join("processes")).unwrap_or_default();
        let lives = |process: &&str| {
            let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
            let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
            state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
        };
        noted.lines().filter(lives).map(str::to_owned).collect()
    }

    fn rows(&self) -> Vec<Value> {
        let exported = Rolldock::new(&["queue", "export", "--format", "jsonl"]).arg(self.out()).succeeds();
        exported.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

pub(crate) fn over(run: Rolldock, servers: &[&Simengine]) -> Rolldock {
    servers.iter().fold(run, |run, server| run.arg("--endpoint").arg(&server.url))
}

/// The value of a metric of a simulated server.
pub(crate) fn of_server(server: &Simengine, name: &str) -> u64 {
    let (status, page) = scrape(&server.url, None);
    assert_eq!(status, 200);
    let lines = page.lines().filter(|line| line.starts_with(name));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64).sum()
}

/// The rest of the summary's line that begins with `tokens: `.
pub(crate) fn tokens_line(stdout: &str) -> &str {
    stdout.lines().find_map(|line| line.strip_prefix("tokens: ")).unwrap()
}

fn no_file(folder: &Path) -> bool {
    fs::read_dir(folder).map_or(true, |mut files| files.next().is_none())
}

#[test]
fn agents_make_the_samples_of_a_run_and_every_token_is_counted() {
    let server = Simengine::start(&["--time-scale", "0.01", "--mean-response-length", "30"]);
    let place = Place::new(TWO_TURNS);
    // Nothing is cut off, so the engine's count is known exactly.
    let run = over(place.run("2"), &[&server]).set("rollout.early_stop=off").set("filter.enable=false");
    let ended = run.succeeds();
    assert!(ended.stdout.contains("done: 2 steps; 4 groups accepted"), "{}", ended.stdout);
    let generated: u64 =
        tokens_line(&ended.stdout).split(' ').next().unwrap().replace(',', "").parse().unwrap();
    assert_eq!(generated, of_server(&server, "vllm:generation_tokens_total"), "{}", ended.stdout);
    assert_eq!(of_server(&server, "vllm:num_requests_running"), 0);
    let rows = place.rows();
    assert_eq!(rows.len(), 4 * 4, "one row for each trajectory");
    for row in &rows {
        let masked: u64 =
            row["response_mask"].as_array().unwrap().iter().map(|bit| bit.as_u64().unwrap()).sum();
        let turns = row["turn_starts"].as_array().unwrap();
        assert_eq!(turns.len(), 2, "{row}");
        assert!(masked > 0 && (masked as usize) < row["response_mask"].as_array().unwrap().len());
        assert!(row["trajectory_uid"].is_string() && row["reward"].is_number(), "{row}");
    }
    assert!(place.living().is_empty() && no_file(&place.out().join("agents")));
}

#[test]
fn an_early_stop_kills_agents_in_a_call() {
    // The agents of the first two prompts end as soon as an agent of another prompt has begun its endless
    // loop of calls.
    let agent = r#"
import fcntl
task = json.load(sys.stdin)
with open(os.environ["PROCESSES"] + ".prompts", "a+") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    file.seek(0)
    prompts = file.read().split()
    if task["prompt_uid"] not in prompts:
        prompts.append(task["prompt_uid"])
        file.write(task["prompt_uid"] + "\n")
chat(task["messages"])
waits = os.environ["PROCESSES"] + ".waits"
if prompts.index(task["prompt_uid"]) >= 2:
    open(waits, "w").close()
    while True:
        try:
            chat(task["messages"])
        except urllib.error.HTTPError:
            time.sleep(0.01)
while not os.path.exists(waits):
    time.sleep(0.01)
"#;
    let server = Simengine::start(&["--time-scale", "0.05", "--mean-response-length", "30"]);
    let place = Place::new(agent);
    let run = over(place.run("1"), &[&server]).set("rollout.early_stop=first").set("filter.enable=false");
    let ended = run
        .set("rollout.launch=batch")
        .set("gateway.turns_max=1000000")
        .set("gateway.tokens_max=1000000000")
        .succeeds();
    assert!(ended.stdout.contains("done: 1 step; 2 groups accepted"), "{}", ended.stdout);
    assert_eq!(place.living(), [""; 0], "{}", ended.stdout);
    wait_for("the end of all requests", || of_server(&server, "vllm:num_requests_running") == 0);
    assert!(place.dir.path().join("processes.waits").exists(), "no agent was cut off");
}

#[test]
fn a_function_is_an_agent_and_rewards_itself() {
    let place = Place::new(FUNCTION);
    let run = place
        .run_of("agent.python=my_agent:work", "1")
        .set("agent.reward=agent")
        .set("reward.overlong.buffer_length=1");
    let run = run.set(&format!("agent.directory={}", place.dir.path().display()));
    run.succeeds();
    let mut rewards: Vec<f64> = place.rows().iter().map(|row| row["reward"].as_f64().unwrap()).collect();
    rewards.sort_by(f64::total_cmp);
    let each = [0.0, 0.25, 0.5, 0.75];
    assert_eq!(rewards, each.iter().flat_map(|reward| [*reward; 2]).collect::<Vec<_>>());
}

#[test]
fn a_run_survives_the_death_of_a_server_of_its_agents() {
    let [one, other] =
        [(); 2].map(|()| Simengine::start(&["--time-scale", "0.2", "--mean-response-length", "40"]));
    let place = Place::new(TWO_TURNS);
    let running = over(place.run("3"), &[&one, &other]).set("filter.enable=false").start();
    wait_for("calls of agents", || of_server(&one, "vllm:num_requests_running") > 0);
    drop(one);
    let ended = running.wait();
    assert_eq!(ended.code, Some(0), "{}\n{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.contains("done: 3 steps; 6 groups accepted"), "{}", ended.stdout);
    assert!(place.living().is_empty());
}

#[test]
fn a_killed_run_goes_on_and_its_agents_are_gone() {
    let server = Simengine::start(&["--time-scale", "0.2", "--mean-response-length", "40"]);
    let place = Place::new(TWO_TURNS);
    let running = over(place.run("1000"), &[&server]).set("filter.enable=false").start();
    wait_for("a step", || running.stdout_so_far().contains("target reached"));
    wait_for("an agent", || !place.living().is_empty());
    running.kill();
    let resume = Rolldock::new(&["run", "--steps", "4", "--resume"]).arg(place.out());
    let ended = resume.succeeds();
    assert!(ended.stdout.contains("the run continues"), "{}", ended.stdout);
    assert!(place.living().is_empty());
}

#[test]
fn a_failed_agent_fails_its_group_with_the_end_of_its_output() {
    let agent = "print('this is', file=sys.stderr)\nsys.exit('the reason')";
    let place = Place::new(agent);
    let failed = place.run("1").set("rollout.max_gen_batches=1").set("run.on_short=error").fails(1);
    assert!(failed.stderr.contains("its output ends with: this is | the reason"), "{}", failed.stderr);
    let kept = fs::read_dir(place.out().join("agents")).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::read_to_string(kept).unwrap(), "this is\nthe reason\n");
}

#[test]
fn a_run_whose_agent_cannot_work_does_not_start() {
    let place = Place::new(TWO_TURNS);
    let both = place.run("1").set("agent.python=my_agent:work").fails(2);
    assert!(both.stderr.contains("`agent.python`") && both.stderr.contains("found both"), "{}", both.stderr);
    let missing = place.run_of("agent.command=[\"no-such-agent\"]", "1").fails(1);
    assert!(missing.stderr.contains("\"no-such-agent\" in PATH"), "{}", missing.stderr);
    let in_process = place.run("1").set("fleet.simulated.transport=in_process").fails(2);
    assert!(in_process.stderr.contains("`fleet.simulated.transport`"), "{}", in_process.stderr);
    let server = Simengine::start(&["--no-scale-out"]);
    let lacking = over(place.run("1"), &[&server]).fails(1);
    assert!(lacking.stderr.contains("--enable-scale-out"), "{}", lacking.stderr);
    assert!(!place.out().exists());
}
