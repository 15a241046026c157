//! Resumed runs whose recipe, directory or place has changed, and the errors that say what to do.

use std::path::Path;

use rolldock_ledger::LedgerState;
use tempfile::TempDir;

use crate::support::{Rolldock, small_run, wait_for};

/// A run of one step that is killed while its first prompts are under way.
fn killed(out: &Path) {
    let run = small_run(out, "1").set("fleet.simulated.time_scale=50").start();
    wait_for("dispatches", || LedgerState::read(out).is_ok_and(|(state, _)| state.totals().dispatched > 0));
    run.kill();
}

fn resumed(out: &Path) -> Rolldock {
    Rolldock::new(&["run", "--resume"]).arg(out).set("fleet.simulated.time_scale=0.002")
}

#[test]
fn a_waiting_prompt_that_is_too_long_now_is_refused_with_the_key_that_has_changed() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    killed(&out);
    let refused = resumed(&out).set("data.max_prompt_length=3").fails(1).stderr;
    for words in [
        "data.max_prompt_length has changed from 256 to 3",
        "resume with --set data.max_prompt_length=256, or name another --out",
    ] {
        assert!(refused.contains(words), "{words} in {refused}");
    }
    assert!(!refused.contains("the data has changed"), "{refused}");
    let cut = resumed(&out).set("data.max_prompt_length=3").set("data.overlong_prompts=truncate_left");
    let refused = cut.fails(2).stderr;
    assert!(refused.contains("data.max_prompt_length: 256 -> 3 (refused: "), "{refused}");
    assert!(refused.contains("resume it with the old values, or name another --out"), "{refused}");
    resumed(&out).set("data.max_prompt_length=300").succeeds();
}
