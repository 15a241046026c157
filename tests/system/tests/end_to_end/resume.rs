//! Runs that are killed with SIGKILL at random moments, several times, and resumed.
//!
//! `ROLLDOCK_KILL_ROUNDS` sets the number of kills (25 by default).

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use rolldock_ledger::LedgerState;
use tempfile::TempDir;

use crate::figures::check_against_ledger;
use crate::support::{Ended, Rolldock, pause_for, recipe, wait_for};

const STEPS: u64 = 5;
const GROUPS: u64 = 6;
const SAMPLES: u64 = 4;
/// The longest time until a process is killed, in milliseconds. A whole run takes about twice as long.
const LIFE_MS_MAX: u64 = 1_500;
/// A run that needs this many processes counts as endless. One process is enough for a run that is not
/// killed.
const LIVES_MAX: u32 = 64;

const SMALL: [&str; 11] = [
    "run.steps=5",
    "rollout.train_batch_size=6",
    "rollout.gen_batch_size=10",
    "rollout.max_gen_batches=40",
    "rollout.samples_per_prompt=4",
    "rollout.workers=2",
    "rollout.max_concurrent_prompts=4",
    "fleet.simulated.servers=2",
    "fleet.simulated.time_scale=0.1",
    "validation.every_steps=100",
    "queue.durability=os",
];

/// The settings of a run, and whether all of its rows stay in the queue.
const MODES: [(&[&str], bool); 4] = [
    (&["rollout.on_stop=requeue"], true),
    (&["rollout.on_stop=carry"], true),
    (&["rollout.on_stop=carry", "policy.mode=fully_async", "rollout.launch=batch"], true),
    (
        &[
            "rollout.on_stop=carry",
            "policy.mode=fully_async",
            "policy.max_staleness=2",
            "policy.update.pause=abort",
            "queue.consumer={task=\"train\",take_groups=6,train_s=0.05,announces=true}",
        ],
        false,
    ),
];

fn life(out: &Path, mode: usize) -> Rolldock {
    let run = Rolldock::new(&["run", "--out"]).arg(out).arg(recipe("quickstart.toml"));
    let run = SMALL.iter().fold(run, |run, set| run.set(set));
    let (settings, keeps) = MODES[mode];
    // The consumer of the recipe would free rows that `check_end` counts.
    let run =
        if keeps { run.set("queue.consumer={task=\"train\",take_groups=1,keep_last_steps=5}") } else { run };
    settings.iter().fold(run, |run, set| run.set(set))
}

/// Checks the ledger of a run without a process. Returns `None` if the ledger has no record yet.
fn check(out: &Path) -> Option<LedgerState> {
    if !out.join("ledger.log").exists() {
        return None;
    }
    let (state, _) = LedgerState::read(out).unwrap();
    // A run that was killed before its first record has nothing to check.
    state.run()?;
    Rolldock::new(&["ledger"]).arg(out).succeeds();
    Some(state)
}

fn check_end(out: &Path, mode: usize, last: &Ended) {
    assert!(last.stdout.contains("done:"), "{}\n{}", last.stdout, last.stderr);
    let state = check(out).unwrap();
    assert_eq!(state.totals().accepted, STEPS * GROUPS, "{:?}", state.totals());
    assert_eq!(state.open().count(), 0);
    check_against_ledger(out, &state);
    if !MODES[mode].1 {
        return;
    }
    let exported = Rolldock::new(&["queue", "export", "--format", "jsonl"]).arg(out).succeeds().stdout;
    let (mut seen, mut tokens) = (BTreeSet::new(), 0);
    for line in exported.lines() {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        let sample = (row["prompt_uid"].as_str().unwrap().to_owned(), row["sample_index"].as_u64().unwrap());
        assert_eq!(
            row["response_ids"].as_array().unwrap().len(),
            row["rollout_logprobs"].as_array().unwrap().len()
        );
        assert!(seen.insert(sample), "twice: {row}");
        tokens += row["response_ids"].as_array().unwrap().len() as u64;
    }
    assert_eq!(seen.len() as u64, STEPS * GROUPS * SAMPLES, "nothing is lost");
    let counted = state.run_tokens();
    assert_eq!(
        counted.accepted + counted.stale,
        tokens,
        "the tokens of the rows, whatever was killed: {counted:?}"
    );
}

/// A generator of pseudo-random numbers that are the same in every test run.
struct Moments(u64);

impl Moments {
    fn next(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

#[test]
fn a_run_that_is_killed_at_any_moment_loses_nothing_and_doubles_nothing() {
    let rounds =
        std::env::var("ROLLDOCK_KILL_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(25);
    let mut moments = Moments(0x9E37_79B9_7F4A_7C15);
    let (mut kills, mut runs) = (0, 0);
    while kills < rounds {
        let mode = runs % MODES.len();
        runs += 1;
        let dir = TempDir::new().unwrap();
        let out = dir.path().join("run");
        let mut lives = 0;
        loop {
            lives += 1;
            assert!(lives < LIVES_MAX, "the run does not come to its end: mode={mode}");
            let mut running = life(&out, mode).start();
            let moment = Duration::from_millis(moments.next(LIFE_MS_MAX));
            // After six processes the run is no longer killed, so every run ends.
            if lives <= 6 && kills < rounds {
                pause_for(moment);
                if !running.has_ended() {
                    running.kill();
                    kills += 1;
                    check(&out);
                    continue;
                }
            }
            let ended = running.wait();
            assert_eq!(ended.code, Some(0), "mode={mode} lives={lives}\n{}\n{}", ended.stdout, ended.stderr);
            check_end(&out, mode, &ended);
            break;
        }
    }
    eprintln!("{kills} kills in {runs} runs");
}

/// The groups of a batch that a killed process sent out are sent out again, but no further batch is sent out.
#[test]
fn a_batch_that_was_sent_out_before_a_kill_is_not_opened_again() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    let first = SMALL
        .iter()
        .fold(Rolldock::new(&["run", "--out"]).arg(&out).arg(recipe("quickstart.toml")), |run, set| {
            run.set(set)
        })
        .set("run.steps=1")
        .set("rollout.gen_batch_size=6")
        .set("rollout.early_stop=off")
        .set("rollout.launch=batch")
        .set("filter.enable=false")
        .set("fleet.simulated.time_scale=20")
        .start();
    let sent = || LedgerState::read(&out).map_or(0, |(state, _)| state.totals().dispatched);
    wait_for("the whole batch", || sent() == GROUPS);
    first.kill();
    let ended =
        Rolldock::new(&["run", "--resume"]).arg(&out).set("fleet.simulated.time_scale=0.1").succeeds();
    let totals = check(&out).unwrap().totals().clone();
    assert_eq!((totals.accepted, totals.dispatched - totals.requeued), (GROUPS, GROUPS), "{}", ended.stdout);
}

/// Restarted servers do not have the weights that an earlier process of the run gave to its servers.
#[test]
fn a_resumed_run_gives_its_servers_the_last_weights_again() {
    let dir = TempDir::new().unwrap();
    let (out, checkpoints, given) =
        (dir.path().join("run"), dir.path().join("checkpoints"), dir.path().join("given"));
    std::fs::create_dir_all(checkpoints.join("step-3")).unwrap();
    std::fs::write(checkpoints.join("step-3/READY"), "").unwrap();
    let script = format!("echo $ROLLDOCK_VERSION $ROLLDOCK_SERVERS >> {}", given.display());
    let settings = [
        "run.steps=100000".to_owned(),
        "policy.mode=fully_async".to_owned(),
        "policy.max_staleness=1000000".to_owned(),
        format!("policy.watch={:?}", checkpoints.display().to_string()),
        "policy.update.method=command".to_owned(),
        format!("policy.update.command=[\"sh\", \"-c\", {script:?}]"),
    ];
    let life = || {
        let run = Rolldock::new(&["run", "--out"]).arg(&out).arg(recipe("quickstart.toml"));
        let run = SMALL.iter().fold(run, |run, set| run.set(set));
        settings.iter().fold(run, |run, set| run.set(set)).start()
    };
    let given_lines = || std::fs::read_to_string(&given).unwrap_or_default().lines().count();
    let version = || LedgerState::read(&out).map_or(0, |(state, _)| state.policy_version());

    let first = life();
    wait_for("version on the servers", || version() == 3);
    first.kill();
    assert_eq!(given_lines(), 1);
    let second = life();
    wait_for("the same weights once more", || given_lines() == 2);
    second.kill();
    let lines = std::fs::read_to_string(&given).unwrap();
    assert_eq!(lines, "3 sim-0 sim-1\n3 sim-0 sim-1\n");
    check(&out);
}

/// A run that serves its queue and listens for versions, until it is interrupted.
const SERVING: [&str; 4] =
    ["run.steps=100000", "policy.mode=fully_async", "policy.listen=127.0.0.1:0", "queue.listen=127.0.0.1:0"];
const TOKENS: [&str; 2] = ["policy.token=hush-1", "queue.token=hush-2"];

/// Waits until the run serves its queue, and interrupts it.
fn serves(run: Rolldock) {
    let run = run.start();
    wait_for("the queue is served", || run.stdout_so_far().contains("serving the queue at "));
    run.interrupt();
    let ended = run.wait();
    assert_eq!(ended.code, Some(0), "{}\n{}", ended.stdout, ended.stderr);
}

#[test]
fn a_run_that_had_tokens_is_not_resumed_without_them() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    let whole = |tokens: &[&str]| SERVING.iter().chain(tokens).fold(life(&out, 0), |run, set| run.set(set));
    let resumed = |tokens: &[&str]| {
        tokens.iter().fold(Rolldock::new(&["run", "--resume"]).arg(&out), |run, set| run.set(set))
    };
    serves(whole(&TOKENS));
    let record = out.join("secrets.toml");
    for file in ["recipe.toml", "secrets.toml", "run.log"] {
        let text = std::fs::read_to_string(out.join(file)).unwrap();
        assert!(!text.contains("hush"), "{file}: {text}");
    }

    let refused = |run: Rolldock, words: &str| {
        let ended = run.fails(2);
        assert!(ended.stderr.contains(words), "{words}: {}", ended.stderr);
    };
    let both = "had policy.token and queue.token, and its directory keeps no secrets; expected \
                --set policy.token=... --set queue.token=..., or the same in the recipe";
    refused(resumed(&[]), both);
    refused(whole(&[]), both);
    refused(resumed(&TOKENS[..1]), "had queue.token, and");
    refused(resumed(&TOKENS[1..]), "expected --set policy.token=..., or");
    serves(resumed(&TOKENS));
    serves(resumed(&["policy.token=another", "queue.token=another"]));
    refused(resumed(&[]), both);

    std::fs::write(&record, "").unwrap();
    let damaged = resumed(&[]).fails(1);
    assert!(damaged.stderr.contains("secrets.toml is damaged; expected the keys"), "{}", damaged.stderr);
    std::fs::remove_file(&record).unwrap();
    serves(resumed(&[]));
}
