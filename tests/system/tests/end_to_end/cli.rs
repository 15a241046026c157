//! Tests of the command line: exit codes, messages, and the files that a command leaves.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::agents::tokens_line;
use crate::support::{Rolldock, Running, SMALL, Simengine, recipe, root, small_run, wait_for};

/// Settings that replace the data and the tokenizer of a recipe for a real model with the data and the
/// tokenizer of the repository.
const OUR_DATA: [&str; 4] = [
    "fleet.endpoints=[]",
    "model.tokenizer=builtin",
    "data.validation=../data/arithmetic/validation.jsonl",
    "data.train=../data/arithmetic/train.jsonl",
];

/// Settings for a recipe with a trainer, so that several runs can listen at the same time.
const ANY_PORT: [&str; 2] = ["queue.listen=127.0.0.1:0", "policy.listen=127.0.0.1:0"];

#[test]
fn a_run_can_be_inspected_exported_and_consumed() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    let run = small_run(&out, "3").succeeds();
    assert!(run.stdout.contains("done: 3 steps; 12 groups accepted"), "{}", run.stdout);
    assert!(run.stdout.contains("the run's own consumer took 8 groups; 16 rows are left"), "{}", run.stdout);
    assert!(run.stdout.contains("validation"), "{}", run.stdout);

    let inspected = Rolldock::new(&["queue", "inspect"]).arg(&out).succeeds().stdout;
    assert!(inspected.contains("train") && inspected.contains("16"), "{inspected}");

    let exported = Rolldock::new(&["queue", "export", "--format", "jsonl"]).arg(&out).succeeds().stdout;
    let rows: Vec<serde_json::Value> =
        exported.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 16);
    for row in &rows {
        let tokens = row["response_ids"].as_array().unwrap().len();
        assert_eq!(row["rollout_logprobs"].as_array().unwrap().len(), tokens);
        assert!(row["prompt_uid"].is_string() && row["reward"].is_number() && row["advantage"].is_number());
    }
    let validated = Rolldock::new(&["queue", "export", "--format", "jsonl", "--partition", "validation"]);
    let validated = validated.arg(&out).succeeds().stdout;
    assert_eq!(validated.lines().count(), 64 * 4, "one validation of 64 prompts");
    let parquet = dir.path().join("rows.parquet");
    Rolldock::new(&["queue", "export", "--format", "parquet", "--output"]).arg(&parquet).arg(&out).succeeds();
    assert!(fs::metadata(&parquet).unwrap().len() > 1_000);

    let batch = |more: &[&str]| {
        let mut arguments = vec!["consume", "--groups", "3"];
        arguments.extend(more);
        Rolldock::new(&arguments).arg(&out).succeeds().stdout
    };
    let left = batch(&["--leave", "--max-batches", "1"]);
    assert!(left.contains("12 rows"), "three groups of four: {left}");
    let taken = batch(&[]);
    assert!(taken.contains("12 rows") && taken.contains("4 rows"), "all four groups: {taken}");
    let empty = Rolldock::new(&["queue", "export", "--format", "jsonl"]).arg(&out).succeeds().stdout;
    assert_eq!(empty, "", "acked rows are gone");
}

#[test]
fn a_dry_run_prints_its_plan_and_writes_nothing() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    let dry = Rolldock::new(&["run", "--dry-run", "--out"]).arg(&out).arg(recipe("quickstart.toml"));
    let words = dry.succeeds().stdout;
    assert!(words.contains("[rollout]") && words.contains("training data: 2000 rows"), "{words}");
    assert!(words.contains("dry run: nothing was written"), "{words}");
    assert!(!out.exists());
}

#[test]
fn the_plan_shows_where_policy_versions_are_announced() {
    let dir = TempDir::new().unwrap();
    let plan = |sets: &[&str]| {
        let out = dir.path().join("run");
        let dry = Rolldock::new(&["run", "--dry-run", "--out"]).arg(&out).arg(recipe("quickstart.toml"));
        sets.iter().fold(dry, |dry, set| dry.set(set)).succeeds().stdout
    };
    let silent = plan(&["policy.mode=fully_async"]);
    assert!(silent.contains("policy: fully_async; note: no trainer announces versions"), "{silent}");
    let later = plan(&["policy.mode=fully_async", "policy.first_version=3"]);
    assert!(later.contains("so the version stays 3"), "{later}");
    assert!(!plan(&[]).contains("note: no trainer announces"), "a synchronous run needs no announcements");
    let heard = plan(&["policy.mode=one_step_off", "policy.listen=127.0.0.1:0", "policy.watch=checkpoints"]);
    let expected = format!(
        "policy: one_step_off, at most 1 versions behind, paced; versions are announced at http://127.0.0.1:0 and in \
         {}; servers are updated by none, pause keep",
        root().join("checkpoints").display()
    );
    assert!(heard.contains(&expected), "{heard}");
}

#[test]
fn every_recipe_runs_on_a_simulated_fleet_and_small_data() {
    let dir = TempDir::new().unwrap();
    // The other recipes have a simulated fleet, our data, and a consumer of their own.
    let with_consumer = ["quickstart.toml", "multiturn_calculator.toml", "agent.toml"];
    let is_served = |path: &Path| !with_consumer.iter().any(|name| path.ends_with(name));
    let start = |path: &Path| {
        let out = dir.path().join(path.file_stem().unwrap());
        let run = Rolldock::new(&["run", "--steps", "1", "--out"]).arg(out).arg(path);
        let mut run = SMALL.iter().filter(|set| !set.starts_with("queue")).fold(run, |run, set| run.set(set));
        if is_served(path) {
            run = OUR_DATA.iter().chain(&ANY_PORT).fold(run, |run, set| run.set(set));
            // Their servers load announced weights, for which simulated servers need workers.
            run = run.set("fleet.simulated.transport=http");
        }
        // The filter accepts some of the groups of 20 batches.
        run.set("rollout.max_gen_batches=20").set("run.on_short=short").set("queue.capacity_rows=64").start()
    };
    let paths = fs::read_dir(root().join("recipes")).unwrap().map(|entry| entry.unwrap().path());
    // A run with a served queue ends five seconds after its last row is taken, so the runs wait at the same
    // time.
    let runs: Vec<(PathBuf, Running)> = paths.map(|path| (path.clone(), start(&path))).collect();
    assert!(runs.len() >= 7, "{} recipes", runs.len());
    for (path, run) in &runs {
        if is_served(path) {
            let url = run.url_after("serving the queue at ");
            Rolldock::new(&["consume", "--wait", "60"]).arg(url).succeeds();
        }
    }
    for (path, run) in runs {
        let ended = run.wait();
        let (path, done) = (path.display(), ended.stdout);
        assert!(done.contains("done: 1 step; "), "{path}: {done}\n{}", ended.stderr);
        assert!(!done.contains("; 0 groups accepted"), "{path}: {done}");
        assert!(
            done.contains("validation after step 0") == path.to_string().contains("dapo"),
            "{path}: {done}"
        );
    }
}

#[test]
fn ctrl_c_keeps_what_was_accepted() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    let running = small_run(&out, "1000").set("run.seed=7").set("fleet.simulated.time_scale=0.05").start();
    wait_for("the queue's files", || out.join("queue").exists());
    wait_for("a step", || running.stdout_so_far().contains("target reached"));
    running.interrupt();
    let ended = running.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains("interrupted after"), "{}", ended.stdout);
    Rolldock::new(&["queue", "inspect"]).arg(&out).succeeds();
}

#[test]
fn tokens_of_audits_that_outlive_the_last_step_are_in_the_summary_and_in_the_ledger() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    // Requests of whole groups, so that no sample of a running group was counted before the end of the step.
    let settings = [
        "rollout.early_stop=first",
        "rollout.on_stop=discard",
        "rollout.bias_audit=1.0",
        "rollout.request=group",
        "fleet.simulated.time_scale=0.05",
    ];
    let run = settings.iter().fold(small_run(&out, "1"), |run, set| run.set(set));
    let summary = run.succeeds().stdout;
    let ledger = Rolldock::new(&["ledger"]).arg(&out).succeeds().stdout;
    assert!(tokens_line(&summary).contains("audit"), "{summary}");
    assert_eq!(tokens_line(&summary), tokens_line(&ledger));
}

#[test]
fn bad_usage_and_failure_have_different_exit_codes() {
    let dir = TempDir::new().unwrap();
    let file = |name: &str, text: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let quickstart = fs::read_to_string(recipe("quickstart.toml")).unwrap();
    let unknown = quickstart.replace("train_batch_size", "train_batchsize");
    let mistyped = quickstart.replace("train_batch_size = 64", "train_batch_size = \"64\"");
    for (path, words) in [
        (dir.path().join("absent.toml"), &["absent.toml"][..]),
        (file("broken.toml", b"[model\nname = 1"), &["broken.toml:1"]),
        (file("unknown.toml", unknown.as_bytes()), &["unknown.toml:", "train_batchsize"]),
        (file("mistyped.toml", mistyped.as_bytes()), &["mistyped.toml:", "train_batch_size", "whole number"]),
        (file("bytes.toml", b"# \xff\n"), &["bytes.toml", "UTF-8"]),
    ] {
        let refused = Rolldock::new(&["run"]).arg(&path).fails(2);
        for word in words {
            assert!(refused.stderr.contains(word), "{word} in {}", refused.stderr);
        }
    }
    let refused =
        Rolldock::new(&["run", "--set", "rollout.wrokers=3"]).arg(recipe("quickstart.toml")).fails(2);
    assert!(refused.stderr.contains("--set") && refused.stderr.contains("wrokers"), "{}", refused.stderr);
    let both = Rolldock::new(&["run", "--set", "rollout.wrokers=3", "--out"]).arg(dir.path());
    let refused = both.arg(recipe("quickstart.toml")).fails(2);
    assert!(refused.stderr.contains("wrokers"), "{}", refused.stderr);
    assert!(refused.stderr.contains("is not empty and holds no run"), "{}", refused.stderr);
    Rolldock::new(&["run"]).fails(2);
    for option in ["--wall", "--idle", "--reward-wait", "--stall"] {
        let gateway =
            Rolldock::new(&["gateway", "--endpoint", "http://127.0.0.1:1", "--tokenizer", "builtin"]);
        let refused = gateway.args(["--out", "never-made", option, "nan"]).fails(2);
        assert!(
            refused.stderr.contains(option) && refused.stderr.contains("expected seconds"),
            "{}",
            refused.stderr
        );
    }
    for line in [
        &["calibrate", "http://127.0.0.1:1", "--api-key"][..],
        &["proxy", "--endpoint", "http://127.0.0.1:1", "--api-key"],
        &[
            "gateway",
            "--endpoint",
            "http://127.0.0.1:1",
            "--tokenizer",
            "builtin",
            "--out",
            "never-made",
            "--api-key",
        ],
        &["consume", "http://127.0.0.1:1", "--token"],
        &["queue", "inspect", "http://127.0.0.1:1", "--token"],
        &["fleet", "list", "--token"],
        // Servers that no client could reach.
        &["simengine", "--ports", "0", "--api-key"],
        &["proxy", "--endpoint", "http://127.0.0.1:1", "--admin-token"],
        &["queue", "serve", "--listen", "127.0.0.1:0", "--token"],
    ] {
        let refused = Rolldock::new(line).arg("hush\n").fails(2);
        assert!(
            refused.stderr.contains("line break") && !refused.stderr.contains("hush"),
            "{}",
            refused.stderr
        );
    }
    let refused = Rolldock::new(&["consume", "--groups", "0"]).arg(dir.path()).fails(2);
    assert!(refused.stderr.contains("--groups"), "{}", refused.stderr);
    Rolldock::new(&["queue", "export", "--format", "parquet"]).arg(dir.path()).fails(2);
}

#[test]
fn a_directory_with_a_run_continues_the_run() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    small_run(&out, "1").succeeds();
    let ended = small_run(&out, "2").succeeds();
    assert!(ended.stdout.contains("the run continues: 4 groups accepted in 1 step"), "{}", ended.stdout);
    assert!(ended.stdout.contains("done: 2 steps; 8 groups accepted"), "{}", ended.stdout);
    let again = Rolldock::new(&["run", "--resume"]).arg(&out).succeeds();
    assert!(again.stdout.contains("done: 2 steps; 8 groups accepted"), "{}", again.stdout);
    let other = small_run(&out, "3").set("data.seed=7").fails(2);
    assert!(other.stderr.contains("data.seed") && other.stderr.contains("refused"), "{}", other.stderr);
    assert!(out.join("run.log").exists(), "what is logged is kept");
    let nothing = Rolldock::new(&["run", "--resume"]).arg(dir.path()).fails(2);
    assert!(nothing.stderr.contains("expected the directory of a run"), "{}", nothing.stderr);
    // A run of an older version has rows, but no ledger with the fates of the other groups.
    fs::remove_file(out.join("ledger.log")).unwrap();
    let refused = small_run(&out, "3").fails(2);
    assert!(refused.stderr.contains("holds a run without a ledger"), "{}", refused.stderr);
}

#[test]
fn data_files_are_made_once_and_a_run_uses_them() {
    let dir = TempDir::new().unwrap();
    let (train, validation) = (dir.path().join("train.jsonl"), dir.path().join("validation.jsonl"));
    let sets = [&train, &validation].map(|file| file.display().to_string());
    let sets = [format!("data.train={}", sets[0]), format!("data.validation={}", sets[1])];
    let prepare = |from: &str| {
        let command = Rolldock::new(&["data", "prepare"]).arg(recipe("quickstart.toml"));
        let command = sets.iter().fold(command, |command, set| command.set(set));
        command.arg("--train").arg(from).arg("--validation-prompts").arg("8")
    };
    let made = prepare("data/arithmetic/train.jsonl").succeeds().stdout;
    let text = fs::read_to_string(&validation).unwrap();
    let held: Vec<&str> = text.lines().collect();
    assert!(
        made.contains(&format!("validation.jsonl: {} rows of ", held.len())) && held.len() >= 8,
        "{made}"
    );
    let training = fs::read_to_string(&train).unwrap();
    assert!(training.lines().all(|line| !held.contains(&line)), "a row is in both files");
    let exists = prepare("data/arithmetic/train.jsonl").fails(2).stderr;
    assert!(exists.contains("train.jsonl exists; --force replaces it"), "{exists}");
    // An earlier split must not stay beside training data that has its prompts.
    let only_train = Rolldock::new(&["data", "prepare", "--force", "--train", "data/arithmetic/train.jsonl"]);
    let only_train =
        sets.iter().fold(only_train.arg(recipe("quickstart.toml")), |command, set| command.set(set));
    let stays = only_train.fails(1).stderr;
    assert!(stays.contains("prompts=8 of the training data are in file="), "{stays}");
    let itself = prepare(train.to_str().unwrap()).arg("--force").fails(2).stderr;
    assert!(itself.contains("would be made from itself"), "{itself}");
    let run = sets.iter().fold(small_run(&dir.path().join("run"), "2"), |run, set| run.set(set));
    let ended = run.succeeds().stdout;
    assert!(ended.contains("validation after step 2: 8 prompts"), "{ended}");
}

#[test]
fn both_dialects_of_simulated_servers_serve_a_run_over_sockets() {
    let dir = TempDir::new().unwrap();
    let flags =
        ["--time-scale", "0.002", "--data", "data/arithmetic/train.jsonl", "--mean-response-length", "40"];
    let generate = Simengine::start(&flags);
    let completions = Simengine::start(&[&flags[..], &["--no-scale-out"]].concat());
    let run = Rolldock::new(&["run", "--steps", "2", "--out"]).arg(dir.path().join("run"));
    let run = run.arg(recipe("quickstart.toml")).arg("--endpoint").arg(&generate.url);
    let run = run.arg("--endpoint").arg(&completions.url);
    let run = SMALL.iter().filter(|set| !set.starts_with("fleet")).fold(run, |run, set| run.set(set));
    let done = run.set("rollout.max_gen_batches=50").succeeds().stdout;
    assert!(done.contains("(generate, ") && done.contains("(completions, "), "{done}");
    assert!(done.contains("done: 2 steps; 8 groups accepted"), "{done}");
}

#[test]
fn a_run_with_too_few_descriptors_prints_the_limit_to_set_and_continues() {
    let dir = TempDir::new().unwrap();
    let data = "data/arithmetic/train.jsonl";
    // The requests of all 256 samples overlap, and the run may have only half as many connections.
    let flags = ["--time-scale", "0.5", "--data", data, "--mean-response-length", "40"];
    let engine = Simengine::start(&flags);
    let run = |files_max: u32| {
        let run =
            Rolldock::with_files(files_max, &["run", "--steps", "1", "--out"]).arg(dir.path().join("run"));
        let run = run.arg(recipe("quickstart.toml")).arg("--endpoint").arg(&engine.url);
        let run = SMALL.iter().filter(|set| !set.starts_with("fleet")).fold(run, |run, set| run.set(set));
        let sets = [
            "fleet.max_loads_per_server=512",
            "rollout.max_concurrent_prompts=64",
            "rollout.gen_batch_size=64",
        ];
        sets.iter().fold(run, |run, set| run.set(set)).set("rollout.max_gen_batches=20")
    };
    let refused = run(64).fails(1).stderr;
    assert!(refused.contains("at least 88 are needed") && refused.contains("set `ulimit -n"), "{refused}");
    assert!(!dir.path().join("run").exists());
    let done = run(192).succeeds();
    assert!(done.stderr.contains("and this process may open 192: set `ulimit -n"), "{}", done.stderr);
    assert!(done.stdout.contains("done: 1 step; 4 groups accepted"), "{}", done.stdout);
}

#[test]
fn output_that_cannot_be_written_is_a_failure_of_commands_but_not_of_a_run() {
    let words = "cannot write to standard output: No space left on device";
    let simulate = ["simulate", "--json", "--steps", "1", "--set", "rollout.train_batch_size=4"];
    let simulate = Rolldock::new(&simulate).arg(recipe("quickstart.toml"));
    let failed = simulate.without_room_for_output().fails(1);
    assert!(failed.stderr.contains(words), "{}", failed.stderr);
    let dir = TempDir::new().unwrap();
    let ended = small_run(&dir.path().join("run"), "1").without_room_for_output().succeeds();
    assert!(ended.stderr.contains(words), "{}", ended.stderr);
}
