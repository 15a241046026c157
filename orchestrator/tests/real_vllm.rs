//! The main job against real vLLM servers, as a user would run it.
//!
//! `tests/real_vllm.sh` installs and starts them: one with `--enable-scale-out`, one without. Their model is tiny and
//! random, so no answer is right: the filter is off and every group counts.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeSet;

use support::vllm::{metric, running_on};
use support::{Rolldock, recipe, shared, wait_for};
use tempfile::TempDir;

#[test]
fn a_run_over_two_real_servers_speaks_both_dialects_and_frees_them_when_it_stops() {
    let Ok(endpoints) = std::env::var("ROLLDOCK_VLLM_ENDPOINTS") else {
        eprintln!(
            "skipped: ROLLDOCK_VLLM_ENDPOINTS is not set; tests/real_vllm.sh starts servers and sets it"
        );
        return;
    };
    let (Some(tokenizer), Some(data)) = (shared("vllm/tokenizer"), shared("data/dapo_math_17k.svs.parquet"))
    else {
        return;
    };
    let urls: Vec<&str> = endpoints.split(',').collect();
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");

    let run = Rolldock::new(&["run", "--steps", "2", "--out"]).arg(&out).arg(recipe("dapo_qwen3_8b.toml"));
    let run = urls.iter().fold(run, |run, url| run.arg("--endpoint").arg(url));
    let settings = [
        "model.name=tiny-qwen3",
        &format!("model.tokenizer={}", tokenizer.display()),
        &format!("data.train={}", data.display()),
        "rollout.train_batch_size=6",
        "rollout.gen_batch_size=12",
        "rollout.samples_per_prompt=4",
        "rollout.max_response_length=256",
        "filter.enable=false",
    ];
    let mut running = settings.iter().fold(run, |run, setting| run.set(setting)).start();
    for url in &urls {
        wait_for("request on the engine", || running_on(url) > 0.0);
    }
    wait_for("first step", || running.stdout_so_far().contains("target reached"));
    assert!(!running.has_ended(), "the second step is under way");
    let ended = running.wait();
    assert_eq!(ended.code, Some(0), "{}\n{}", ended.stdout, ended.stderr);
    assert!(
        ended.stdout.contains("(generate, ") && ended.stdout.contains("(completions, "),
        "{}",
        ended.stdout
    );
    assert!(ended.stdout.contains("done: 2 steps; 12 groups accepted of 24"), "{}", ended.stdout);

    // Six of twelve groups were enough: the others were cancelled on the engines, not only here.
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
        assert!((1..=256).contains(&tokens));
        let logprobs = row["rollout_logprobs"].as_array().unwrap();
        assert_eq!(logprobs.len(), tokens);
        assert!(logprobs.iter().all(|logprob| logprob.as_f64().unwrap() <= 0.0));
    }
}

/// From "(0 filtered, ..., 12 cancelled, ...)" of the summary.
fn cancelled_groups(stdout: &str) -> u64 {
    let summary = stdout.lines().find(|line| line.starts_with("done: ")).unwrap();
    let words: Vec<&str> = summary.split([' ', ',', '(', ')']).collect();
    let at = words.iter().position(|word| *word == "cancelled").unwrap();
    words[at - 1].parse().unwrap()
}
