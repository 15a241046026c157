//! Tests of starts that are refused: the exit code, the message, and what stays unchanged.

use std::fs;
use std::net::TcpListener;

use tempfile::TempDir;

use crate::support::{Rolldock, Simengine, recipe, root, small_run};

#[test]
fn a_run_does_not_start_in_a_directory_with_other_files() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("notes.txt"), "mine").unwrap();
    for (out, words) in [("", "is not empty and holds no run"), ("notes.txt", "is not a directory")] {
        let refused = small_run(&dir.path().join(out), "1").fails(2);
        assert!(refused.stderr.contains(words), "{}", refused.stderr);
        assert!(refused.stderr.contains("expected a new or empty directory"), "{}", refused.stderr);
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing was written");
}

#[test]
fn a_start_that_fails_leaves_no_directory_behind() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("runs/first");
    let failed = small_run(&out, "1").set("reward.command=[\"/no/such/program\"]").fails(1);
    assert!(failed.stderr.contains("the reward cannot be used"), "{}", failed.stderr);
    assert!(!failed.stderr.contains("go on with"), "{}", failed.stderr);
    assert!(!dir.path().join("runs").exists());
    // An existing run stays, and the error names the command that resumes it.
    small_run(&out, "1").succeeds();
    let failed = small_run(&out, "2").set("reward.command=[\"/no/such/program\"]").fails(1);
    assert!(failed.stderr.contains("go on with: rolldock run --resume "), "{}", failed.stderr);
    assert!(out.join("ledger.log").exists() && out.join("queue").exists());
    let kept = fs::read_to_string(out.join("recipe.toml")).unwrap();
    assert!(!kept.contains("/no/such/program"), "the recipe with which the run works is kept");
}

#[test]
fn ports_that_are_in_use_are_found_before_anything_is_written() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    let holders = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [queue, policy] = holders.each_ref().map(|holder| holder.local_addr().unwrap());
    for dry in [true, false] {
        let run = small_run(&out, "1").set(&format!("queue.listen={queue}"));
        let run = run.set(&format!("policy.listen={policy}")).set("policy.mode=fully_async");
        let failed = if dry { run.arg("--dry-run") } else { run }.fails(1);
        for words in
            [format!("queue.listen={queue}: Address already in use"), format!("policy.listen={policy}: ")]
        {
            assert!(failed.stderr.contains(&words), "{words} in {}", failed.stderr);
        }
        assert!(!out.exists());
    }
}

#[test]
fn a_run_that_lost_its_ledger_or_its_queue_is_refused_and_nothing_is_deleted() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    small_run(&out, "1").set("queue.consumer={task=\"train\",take_groups=1,keep_last_steps=9}").succeeds();
    let resumed = |words: &[&str]| {
        let refused = Rolldock::new(&["run", "--resume"]).arg(&out).fails(1);
        for word in words {
            assert!(refused.stderr.contains(word), "{word} in {}", refused.stderr);
        }
    };
    let (ledger, journal) = (out.join("ledger.log"), out.join("queue/journal.log"));
    let segment = out.join("queue/segment-00000000.arrow");
    let payload = fs::read(&segment).unwrap();
    for (file, left, words) in [
        (&ledger, &b""[..], &["ledger.log is missing or empty", "put the ledger back"][..]),
        (&ledger, b"ROLLDOCK-LEDGER-1\n", &["the ledger has no record", "rows in the run's queue"]),
        (&journal, b"", &["journal.log is missing or empty", "segment-00000000.arrow"]),
    ] {
        let whole = fs::read(file).unwrap();
        fs::write(file, left).unwrap();
        resumed(words);
        assert_eq!(fs::read(&segment).unwrap(), payload);
        fs::write(file, whole).unwrap();
    }
    fs::rename(out.join("queue"), dir.path().join("away")).unwrap();
    resumed(&["holds no queue", "rolldock queue restore"]);
    assert!(!out.join("queue").exists(), "no queue is made");
    fs::rename(dir.path().join("away"), out.join("queue")).unwrap();
    Rolldock::new(&["run", "--resume"]).arg(&out).succeeds();
}

#[test]
fn a_data_file_that_is_missing_is_named_with_the_places_where_it_was_looked_for() {
    let dir = TempDir::new().unwrap();
    let missing = small_run(&dir.path().join("run"), "1").set("data.train=absent.jsonl").fails(1).stderr;
    assert!(missing.contains("cannot read file=absent.jsonl: No such file"), "{missing}");
    let recipes = root().join("recipes/absent.jsonl").display().to_string();
    let here = root().join("absent.jsonl").display().to_string();
    for place in [recipes, here] {
        assert!(missing.contains(&place), "{place} in {missing}");
    }
}

#[test]
fn bad_data_is_one_clear_error_and_nothing_is_written() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    for (name, text, words) in [
        (
            "no_prompt.jsonl",
            &b"{\"question\":\"1+1?\",\"answer\":\"2\"}\n{\"answer\":\"3\"}\n"[..],
            &["question"][..],
        ),
        (
            "no_answer.jsonl",
            b"{\"question\":\"1+1?\",\"answer\":\"2\"}\n{\"question\":\"2+2?\"}\n",
            &["answer"],
        ),
        ("bytes.jsonl", b"{\"question\":\"1+1?\",\"answer\":\"2\"}\n{\"question\":\"\xff\"}\n", &["UTF-8"]),
        ("broken.jsonl", b"{\"question\":\"1+1?\",\"answer\":\"2\"}\n{\"question\n", &[]),
        ("empty.jsonl", b"", &["empty.jsonl"]),
        ("false.parquet", b"PAR1 is what it starts with", &["false.parquet"]),
    ] {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        let set = format!("data.train={}", path.display());
        let run = Rolldock::new(&["run", "--out"]).arg(&out).arg(recipe("quickstart.toml")).set(&set);
        let refused = run.fails(1);
        assert!(refused.stderr.contains(name), "{name}: {}", refused.stderr);
        for word in words {
            assert!(refused.stderr.contains(word), "{name}: {word} in {}", refused.stderr);
        }
        if name.ends_with(".jsonl") && !text.is_empty() {
            assert!(refused.stderr.contains(":2") || refused.stderr.contains("line 2"), "{}", refused.stderr);
        }
        assert_eq!(refused.stderr.lines().filter(|line| line.starts_with("error")).count(), 1);
        assert!(!out.exists(), "{name}: nothing is half-written");
    }
}

#[test]
fn servers_that_cannot_serve_the_recipe_are_refused_by_name() {
    let dir = TempDir::new().unwrap();
    let against = |endpoint: &str, sets: &[&str]| {
        let run = Rolldock::new(&["run", "--endpoint", endpoint, "--out"]);
        let run = run.arg(dir.path().join("run")).arg(recipe("quickstart.toml"));
        sets.iter().fold(run, |run, set| run.set(set))
    };
    let unreachable = against("http://127.0.0.1:9", &["timeouts.connect=1"]).fails(1);
    assert!(unreachable.stderr.contains("127.0.0.1:9"), "{}", unreachable.stderr);

    let server = Simengine::start(&["--model", "another", "--time-scale", "0.002"]);
    let other_model = against(&server.url, &[]).fails(1);
    assert!(other_model.stderr.contains("another") && other_model.stderr.contains("simulated"));

    let Some(tokenizer) = crate::support::shared("vllm/tokenizer") else { return };
    let tokenizer = format!("model.tokenizer={}", tokenizer.display());
    let other_tokenizer = against(&server.url, &["model.name=another", &tokenizer]).fails(1);
    assert!(other_tokenizer.stderr.contains("its tokenizer is not that of model.tokenizer"));
    assert!(!dir.path().join("run").exists());
}
