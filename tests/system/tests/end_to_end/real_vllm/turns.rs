//! The recipe of turns with a tool on a real vLLM server, with a trainer that takes both steps.

use serde_json::json;
use tempfile::TempDir;

use super::GENERATED;
use crate::support::vllm::{Vllm, post_json};
use crate::support::{Rolldock, recipe, shared, wait_within};

/// Runs two steps of `recipes/agent_gsm8k_tool.toml`, with other sizes, paths and addresses. A model with
/// random weights gives no right answer. Its groups therefore have no variance, and the filter is off.
pub(super) fn the_recipe_with_a_tool_makes_steps_for_a_trainer(server: &Vllm) {
    let [Some(train), Some(validation)] = ["data/gsm8k_train.jsonl", "data/gsm8k_test.jsonl"].map(shared)
    else {
        return;
    };
    let dir = TempDir::new().unwrap();
    let settings = [
        "model.name=tiny-qwen3".to_owned(),
        format!("model.tokenizer={}", shared("vllm/tokenizer").unwrap().display()),
        format!("data.train={}", train.display()),
        format!("data.validation={}", validation.display()),
        "environment.turn_tokens=48".to_owned(),
        "environment.context_tokens=1024".to_owned(),
        "rollout.max_response_length=96".to_owned(),
        "rollout.samples_per_prompt=2".to_owned(),
        "rollout.train_batch_size=2".to_owned(),
        "rollout.gen_batch_size=2".to_owned(),
        "filter.enable=false".to_owned(),
        "policy.listen=127.0.0.1:0".to_owned(),
        "queue.listen=127.0.0.1:0".to_owned(),
    ];
    let run = Rolldock::new(&["run", "--steps", "2", "--out"]).arg(dir.path().join("run"));
    let run = run.arg(recipe("agent_gsm8k_tool.toml")).arg("--endpoint").arg(&server.url);
    let mut run = settings.iter().fold(run, |run, set| run.set(set)).start();
    let announce = run.url_after("policy versions are announced at ");
    let policy = announce.trim_end_matches("/v1/policy/announce").to_owned();
    let queue = run.url_after("serving the queue at ");
    for version in 1..=2 {
        let wait = GENERATED.as_secs().to_string();
        // A take may find only one of the step's two groups, so each take asks for one group.
        let trainer = ["consume", "--groups", "1", "--max-batches", "2", "--wait", &wait];
        let trained = Rolldock::new(&trainer).arg(&queue).succeeds().stdout;
        assert!(trained.contains("2 batches, 4 rows consumed"), "{trained}");
        // The run waits for the trainer's version before it begins its next step.
        if version == 1 {
            let announced = post_json(&policy, "/v1/policy/announce", &json!({ "version": version }));
            assert!(announced.is_some(), "{}", run.stderr_so_far());
        }
    }
    wait_within(GENERATED, "end of the run", || run.has_ended());
    let ended = run.wait();
    assert_eq!(ended.code, Some(0), "{}\n{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.contains("done: 2 steps; 4 groups accepted"), "{}", ended.stdout);
}
