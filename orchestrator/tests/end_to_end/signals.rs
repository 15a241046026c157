//! Tests of runs that end by a signal.

use tempfile::TempDir;

use crate::support::{Rolldock, Running, recipe, wait_for};

/// Settings for small and slow steps: a run of 1000 steps does not end during the test.
const SETTINGS: [&str; 8] = [
    "fleet.simulated.time_scale=0.05",
    "fleet.simulated.mean_response_length=40",
    "rollout.train_batch_size=4",
    "rollout.gen_batch_size=8",
    "rollout.samples_per_prompt=4",
    "rollout.max_response_length=256",
    "queue.consumer.take_groups=2",
    "queue.capacity_rows=32",
];

/// SIGTERM and Ctrl-C have the same effect: the run ends in order and can be resumed.
#[test]
fn a_run_that_is_asked_to_end_ends_in_order_and_can_go_on() {
    for (name, ask) in [("SIGTERM", Running::terminate as fn(&Running)), ("Ctrl-C", Running::interrupt)] {
        let dir = TempDir::new().unwrap();
        let out = dir.path().join("run");
        let run = |steps: &str| {
            let run =
                Rolldock::new(&["run", "--steps", steps, "--out"]).arg(&out).arg(recipe("quickstart.toml"));
            SETTINGS.iter().fold(run, |run, set| run.set(set))
        };
        let running = run("1000").start();
        wait_for("a step", || running.stdout_so_far().contains("target reached"));
        ask(&running);
        let ended = running.wait();
        assert_eq!(ended.code, Some(0), "{name}: {}", ended.stderr);
        assert!(ended.stderr.contains("cancelling what runs on the engines"), "{name}: {}", ended.stderr);
        let said = ended.stdout.lines().find(|line| line.contains("interrupted after")).unwrap_or_default();
        assert!(said.contains(" groups accepted"), "{name}: {}", ended.stdout);
        let steps = said.split("interrupted after ").nth(1).unwrap().split(' ').next().unwrap();
        // The resumed run has already done all of its steps.
        let on = run(steps).succeeds();
        assert!(on.stdout.contains("the run goes on: "), "{name}: {}", on.stdout);
        assert!(on.stdout.contains(&format!("done: {steps} steps; ")), "{name}: {}", on.stdout);
    }
}
