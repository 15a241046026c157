//! Runs whose servers do not all answer when they start or are resumed.

use std::path::Path;

use tempfile::TempDir;

use crate::support::vllm::{metric, running_on};
use crate::support::{Rolldock, Simengine, recipe, wait_for};

/// The flags of servers with short answers. They leave some processor time to the test.
const FLAGS: [&str; 6] =
    ["--time-scale", "0.05", "--data", "data/arithmetic/train.jsonl", "--mean-response-length", "40"];
const TOKENS: &str = "vllm:generation_tokens_total";

fn run(out: &Path, steps: u64, endpoints: &[&str]) -> Rolldock {
    let run = Rolldock::new(&["run", "--out"]).arg(out).arg(recipe("quickstart.toml"));
    let run = run.arg("--steps").arg(steps.to_string());
    let run = endpoints.iter().fold(run, |run, endpoint| run.arg("--endpoint").arg(endpoint));
    let settings = [
        "rollout.train_batch_size=4",
        "rollout.gen_batch_size=8",
        "rollout.max_gen_batches=50",
        "rollout.samples_per_prompt=4",
        "rollout.max_response_length=256",
        "validation.every_steps=1000000",
    ];
    settings.iter().fold(run, |run, set| run.set(set))
}

/// The URL and the port of a server that will be started later. Nothing listens at this port yet.
fn address_of_none() -> (String, u16) {
    let port = rolldock_tests::free_address().port();
    (format!("http://127.0.0.1:{port}"), port)
}

#[test]
fn one_dead_server_of_two_prevents_neither_the_start_nor_the_resumption() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    let server = Simengine::start(&FLAGS);
    let (dead, _) = address_of_none();
    let endpoints = [server.url.as_str(), dead.as_str()];
    for steps in [1, 2] {
        let ended = run(&out, steps, &endpoints).succeeds();
        let absent = format!("; not answering yet: {}", &dead["http://".len()..]);
        assert!(ended.stdout.contains(&absent), "{}", ended.stdout);
        assert!(ended.stdout.contains(&format!("done: {steps} step")), "{}", ended.stdout);
        assert_eq!(ended.stdout.contains("the run continues: "), steps == 2, "{}", ended.stdout);
        assert!(ended.stderr.contains("a server gives no usable answer yet"), "{}", ended.stderr);
    }
    let both = run(&dir.path().join("both"), 1, &endpoints).set("fleet.servers_min=2");
    let too_few = both.arg("--wait-for-servers").arg("0.5").fails(1).stderr;
    assert!(too_few.contains("1 of 2 servers answer, expected at least fleet.servers_min=2"), "{too_few}");
    assert!(!dir.path().join("both").exists());
    let wrong = run(&out, 1, &endpoints).arg("--wait-for-servers").arg("0").fails(2).stderr;
    assert!(wrong.contains("--wait-for-servers: expected seconds, more than 0"), "{wrong}");
}

/// A slow command loads the weights, so the test can see whether a server generates tokens before it has the
/// weights.
#[test]
fn a_late_server_joins_and_gets_the_weights_before_its_first_request() {
    let dir = TempDir::new().unwrap();
    let (out, checkpoints, given) =
        (dir.path().join("run"), dir.path().join("checkpoints"), dir.path().join("given"));
    let script = format!("sleep 0.5; echo $ROLLDOCK_VERSION $ROLLDOCK_SERVERS >> {}", given.display());
    let settings = [
        "policy.mode=fully_async".to_owned(),
        "policy.max_staleness=1000000".to_owned(),
        format!("policy.watch={:?}", checkpoints.display().to_string()),
        "policy.update.method=command".to_owned(),
        format!("policy.update.command=[\"sh\", \"-c\", {script:?}]"),
    ];
    let life = |endpoints: &[&str]| {
        let run = run(&out, 1_000_000, endpoints);
        settings.iter().fold(run, |run, set| run.set(set)).start()
    };
    let is_given = |server: &str, times: usize| {
        let text = std::fs::read_to_string(&given).unwrap_or_default();
        text.lines().filter(|line| line.starts_with("3 ") && line.contains(server)).count() >= times
    };
    // Before the weights are loaded, the server has generated nothing.
    let until_given = |server: &str, times: usize| {
        let before = metric(server, TOKENS);
        wait_for("weights on the server", || {
            let generated = metric(server, TOKENS) - before;
            let is_given = is_given(server, times);
            assert!(is_given || generated <= 0.0, "{generated} tokens of unknown weights");
            is_given
        });
        wait_for("tokens of the server", || metric(server, TOKENS) > before);
    };
    std::fs::create_dir_all(checkpoints.join("step-3")).unwrap();
    std::fs::write(checkpoints.join("step-3/READY"), "").unwrap();

    let first = Simengine::start(&FLAGS);
    let ((late, late_port), (wrong, wrong_port)) = (address_of_none(), address_of_none());
    let running = life(&[&first.url, &late, &wrong]);
    wait_for("the version on the first server", || is_given(&first.url, 1));
    let _late_server = Simengine::at(late_port, &FLAGS);
    let _wrong_server = Simengine::at(wrong_port, &["--model", "another"]);
    until_given(&late, 1);
    wait_for("a warning", || running.stderr_so_far().contains("a server that answers late stays out"));
    assert!(
        running.stderr_so_far().contains("it serves models=[\"another\"]"),
        "{}",
        running.stderr_so_far()
    );
    assert!(metric(&wrong, TOKENS) <= 0.0);
    running.kill();

    // The resumed run has lost its first server. The other server has to get the weights again.
    let lost = first.url.clone();
    drop(first);
    wait_for("the end of all requests", || running_on(&late) <= 0.0);
    let _resumed = life(&[&lost, &late]);
    until_given(&late, 2);
}
