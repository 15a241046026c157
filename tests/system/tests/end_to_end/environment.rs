//! Runs whose samples are trajectories in an environment: the recipe of the calculator, runs that are killed
//! and resumed, and environments in Python that raise, hang and die.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use rolldock_ledger::LedgerState;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Ended, Rolldock, SMALL, pause_for, recipe, root};

const STEPS: usize = 2;
const GROUPS: usize = 4;
const SAMPLES: usize = 4;
/// How often a run is killed before it may come to its end.
const KILLS: u64 = 6;

/// Two small steps of the calculator's recipe, whose rows stay in the queue.
fn run(out: &Path) -> Rolldock {
    let run =
        Rolldock::new(&["run", "--steps", "2", "--out"]).arg(out).arg(recipe("multiturn_calculator.toml"));
    let run = SMALL.iter().fold(run, |run, set| run.set(set));
    run.set("rollout.max_response_length=512")
        .set("queue.consumer.keep_last_steps=2")
        .set("validation.every_steps=100")
}

/// The rows in the queue of a run.
fn rows(out: &Path) -> Vec<Value> {
    let exported = Rolldock::new(&["queue", "export", "--format", "jsonl"]).arg(out).succeeds().stdout;
    exported.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn list<'a>(row: &'a Value, column: &str) -> &'a Vec<Value> {
    row[column].as_array().unwrap_or_else(|| panic!("{column} of {row}"))
}

fn sum(values: &[Value]) -> u64 {
    values.iter().map(|value| value.as_u64().unwrap()).sum()
}

/// Checks that a row trains the tokens of its turns and no others, and returns their number.
fn trained(row: &Value) -> u64 {
    let (starts, ends) = (list(row, "turn_starts"), list(row, "turn_ends"));
    let turns = sum(ends) - sum(starts);
    assert_eq!(sum(list(row, "response_mask")), turns, "{row}");
    let tokens = list(row, "response_ids").len();
    assert_eq!((list(row, "response_mask").len(), list(row, "rollout_logprobs").len()), (tokens, tokens));
    assert_eq!(starts.len(), list(row, "turn_rewards").len());
    turns
}

/// Checks the rows of a run that has come to its end.
fn check_end(out: &Path, ended: &Ended) -> Vec<Value> {
    assert!(ended.stdout.contains("done:"), "{}\n{}", ended.stdout, ended.stderr);
    let rows = rows(out);
    let sample = |row: &Value| (row["prompt_uid"].to_string(), row["sample_index"].as_u64().unwrap());
    let seen: BTreeSet<_> = rows.iter().map(sample).collect();
    assert_eq!((seen.len(), rows.len()), (STEPS * GROUPS * SAMPLES, STEPS * GROUPS * SAMPLES));
    let uids: BTreeSet<String> = rows.iter().map(|row| row["trajectory_uid"].to_string()).collect();
    assert_eq!(uids.len(), rows.len());
    let (state, _) = LedgerState::read(out).unwrap();
    assert_eq!(state.totals().accepted as usize, STEPS * GROUPS, "{:?}", state.totals());
    let tokens: u64 = rows.iter().map(trained).sum();
    assert_eq!(state.run_tokens().accepted, tokens, "{:?}", state.run_tokens());
    rows
}

#[test]
fn the_recipe_of_the_calculator_makes_rows_of_turns() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    let ended = run(&out).succeeds();
    assert!(ended.stdout.contains("environment: calculator, at most 4 turns"), "{}", ended.stdout);
    let rows = check_end(&out, &ended);
    let calls = rows.iter().filter(|row| list(row, "turn_starts").len() == 2);
    assert!(calls.count() > rows.len() / 2, "most trajectories call the calculator and answer");
    let mut rewards = BTreeSet::new();
    for row in &rows {
        let reward = row["score"].as_f64().unwrap();
        rewards.insert(reward.to_string());
        let of_turns: f64 = list(row, "turn_rewards").iter().filter_map(Value::as_f64).sum();
        assert_eq!(of_turns, reward, "{row}");
        let info: Value = serde_json::from_str(row["metadata"].as_str().unwrap()).unwrap();
        assert_eq!(info["infos"].as_array().unwrap().len(), list(row, "turn_starts").len());
        assert!(row["end"] == "done" || reward == 0.0, "{row}");
    }
    assert_eq!(rewards.len(), 2, "right and wrong answers: {rewards:?}");
}

/// The advantages of a group's turns by the definition, in 64 bits. The advantage of a turn is the sum of the
/// normalised rewards of this turn and of all later turns. If no turn of a trajectory has a reward, the
/// reward of the trajectory counts as the reward of its last turn.
fn process_advantages(rows: &[&Value]) -> Vec<Vec<f64>> {
    let of_row = |row: &&Value| -> Vec<Option<f64>> {
        let mut rewards: Vec<Option<f64>> = list(row, "turn_rewards").iter().map(Value::as_f64).collect();
        if rewards.iter().all(Option::is_none) {
            *rewards.last_mut().unwrap() = row["reward"].as_f64();
        }
        rewards
    };
    let rewards: Vec<_> = rows.iter().map(of_row).collect();
    let given: Vec<f64> = rewards.iter().flatten().flatten().copied().collect();
    let mean = given.iter().sum::<f64>() / given.len() as f64;
    let squares: f64 = given.iter().map(|reward| (reward - mean).powi(2)).sum();
    let scale = (squares / (given.len() as f64 - 1.0)).sqrt() + 1e-6;
    let from = |rewards: &[Option<f64>]| rewards.iter().flatten().map(|reward| (reward - mean) / scale).sum();
    let advantages =
        |of_row: &Vec<Option<f64>>| (0..of_row.len()).map(|turn| from(&of_row[turn..])).collect();
    rewards.iter().map(advantages).collect()
}

#[test]
fn tokens_have_the_advantages_of_their_turns_by_the_definition() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    let task = "queue.tasks={train={columns=['token_advantages']}}";
    let ended = run(&out).set("reward.advantage=grpo_process").set(task).succeeds();
    let rows = check_end(&out, &ended);
    let groups: BTreeSet<&str> = rows.iter().map(|row| row["prompt_uid"].as_str().unwrap()).collect();
    let mut turns = 0;
    for group in groups {
        let rows: Vec<&Value> = rows.iter().filter(|row| row["prompt_uid"] == group).collect();
        for (row, expected) in rows.iter().zip(process_advantages(&rows)) {
            let mut of_tokens = vec![0.0; list(row, "response_ids").len()];
            for ((start, end), advantage) in
                list(row, "turn_starts").iter().zip(list(row, "turn_ends")).zip(expected)
            {
                let tokens = start.as_u64().unwrap() as usize..end.as_u64().unwrap() as usize;
                of_tokens[tokens].fill(advantage);
                turns += 1;
            }
            let found = list(row, "token_advantages").iter().map(|token| token.as_f64().unwrap());
            assert_eq!(found.len(), of_tokens.len());
            assert!(found.zip(&of_tokens).all(|(a, b)| (a - b).abs() < 1e-4), "{of_tokens:?}: {row}");
        }
    }
    assert!(turns > rows.len(), "some trajectories have two turns");
}

#[test]
fn a_run_of_trajectories_that_is_killed_loses_nothing_and_doubles_nothing() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    let life = || run(&out).set("fleet.simulated.time_scale=0.05");
    for kill in 1..=KILLS {
        let mut running = life().start();
        pause_for(Duration::from_millis(250 * kill));
        if running.has_ended() {
            break;
        }
        running.kill();
    }
    let ended = life().start().wait();
    assert_eq!(ended.code, Some(0), "{}\n{}", ended.stdout, ended.stderr);
    check_end(&out, &ended);
}

/// An environment whose behaviour depends on the index of its row.
const CLASS: &str = r#"
import os, time

class Moody:
    def reset(self, *, messages, answer, fields, seed):
        self.mood = fields["extra_info"]["index"] % 4
        self.answer = answer
        self.turns = 0
        return messages

    def step(self, *, text, ids):
        self.turns += 1
        if self.turns == 2:
            if self.mood == 1:
                raise ValueError("no such move")
            if self.mood == 2:
                time.sleep(600)
            if self.mood == 3:
                os._exit(9)
        done = self.turns == 3
        reward = float(self.answer in text) if done else 0.0
        return {"messages": [{"role": "user", "content": "go on"}], "reward": reward, "done": done}
"#;

/// A recipe of one step with an environment in Python.
fn python_recipe(class: &str) -> String {
    let train = root().join("data/arithmetic/train.jsonl").display().to_string();
    format!(
        r#"
        [model]
        name = "simulated"
        tokenizer = "builtin"
        [data]
        train = {train:?}
        max_prompt_length = 256
        [environment]
        python = {{ class = {class:?}, workers = 6 }}
        turn_time = 2
        [fleet.simulated]
        servers = 2
        time_scale = 0.002
        mean_response_length = 40
        [rollout]
        workers = 2
        max_concurrent_prompts = 4
        samples_per_prompt = {SAMPLES}
        train_batch_size = {GROUPS}
        gen_batch_size = 8
        max_gen_batches = 40
        max_response_length = 256
        [filter]
        enable = false
        [policy]
        mode = "off"
        [run]
        steps = 1
        "#
    )
}

/// A run of [`python_recipe`] with the class `class` from a file that contains `text`.
fn python_run(dir: &TempDir, text: &str, class: &str) -> Rolldock {
    let (file, written) = (dir.path().join("worlds.py"), dir.path().join("recipe.toml"));
    std::fs::write(&file, text).unwrap();
    std::fs::write(&written, python_recipe(&format!("{}:{class}", file.display()))).unwrap();
    Rolldock::new(&["run", "--out"]).arg(dir.path().join("run")).arg(&written)
}

#[test]
fn environments_in_python_that_raise_hang_or_die_cost_their_groups_only() {
    let dir = TempDir::new().unwrap();
    let ended = python_run(&dir, CLASS, "Moody").succeeds();
    let rows = rows(&dir.path().join("run"));
    assert_eq!(rows.len(), GROUPS * SAMPLES);
    rows.iter().for_each(|row| assert!(trained(row) > 0));
    let ends: BTreeSet<&str> = rows.iter().map(|row| row["end"].as_str().unwrap()).collect();
    assert!(ends.is_subset(&BTreeSet::from(["done", "time"])), "{ends:?}");
    let told = &ended.stderr;
    assert!(told.contains("ValueError: no such move") || told.contains("exit status: 9"), "{told}");
}

#[test]
fn environments_that_cannot_be_used_are_errors_at_the_start() {
    let dir = TempDir::new().unwrap();
    let ended = python_run(&dir, "class Empty:\n    pass\n", "Empty").fails(1);
    assert!(ended.stderr.contains("Empty has no method reset"), "{}", ended.stderr);
    let simulated = Rolldock::new(&["simulate"]).arg(recipe("multiturn_calculator.toml")).fails(2);
    assert!(simulated.stderr.contains("found one with [environment]"), "{}", simulated.stderr);
    let simulated = Rolldock::new(&["simulate"]).arg(recipe("agent.toml")).fails(2);
    assert!(simulated.stderr.contains("found one with [agent]"), "{}", simulated.stderr);
    for (number, (setting, expected)) in [
        ("environment.turns=0", "expected 1 to 4096, found 0"),
        ("rollout.on_stop=carry", "a trajectory that is cut off cannot go on from its tokens"),
        ("environment.url=http://127.0.0.1:1", "found 2 of them"),
    ]
    .into_iter()
    .enumerate()
    {
        let out = dir.path().join(format!("run-{number}"));
        let ended = run(&out).set(setting).fails(2);
        assert!(ended.stderr.contains(expected), "{setting}: {}", ended.stderr);
    }
}
