//! Tests with real vLLM servers: a run, the proxy, steps during which a server fails, and steps with new
//! versions.
//!
//! `tests/real_vllm.sh` installs vLLM, sets `ROLLDOCK_VLLM_START` to the script that starts a server, and
//! runs these tests. A server takes up to 90 s to start, so all parts use one pair of servers, in an order
//! that needs few restarts. If `ROLLDOCK_VLLM_AFTER` is set, the parts begin only when the file that it names
//! exists, so the servers can start while the machine is still busy with other work.

mod answers;
mod faults;
mod lifecycle;
mod turns;

use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::Instant;

use crate::support::vllm::Vllm;
use crate::support::{Rolldock, shared, untaken_recipe, wait_within};

/// With this flag a server accepts and returns token ids. Without the flag, clients use `/v1/completions`.
const SCALE_OUT: [&str; 1] = ["--enable-scale-out"];
/// The longest time for a few steps on a busy machine. Two cores generated about 100 tokens per second.
const GENERATED: Duration = Duration::from_secs(600);
/// The longest time until the file that `ROLLDOCK_VLLM_AFTER` names exists.
const BUSY: Duration = Duration::from_secs(3_600);

/// A run over these servers, which begins when all of them answer.
fn run_over<'a>(urls: impl IntoIterator<Item = &'a str>, steps: usize, out: &Path) -> Rolldock {
    let run = Rolldock::new(&["run", "--steps", &steps.to_string(), "--out"]).arg(out).arg(untaken_recipe());
    let run = run.arg("--wait-for-servers").arg(BUSY.as_secs().to_string());
    let (run, servers) =
        urls.into_iter().fold((run, 0), |(run, servers), url| (run.arg("--endpoint").arg(url), servers + 1));
    run.set(&format!("fleet.servers_min={servers}"))
        .set("model.name=tiny-qwen3")
        .set(&format!("model.tokenizer={}", shared("vllm/tokenizer").unwrap().display()))
        .set(&format!("data.train={}", shared("data/dapo_math_17k.svs.parquet").unwrap().display()))
}

#[test]
fn real_servers_answer_fail_and_change_their_versions() {
    let Some(script) = std::env::var_os("ROLLDOCK_VLLM_START").map(PathBuf::from) else {
        eprintln!("skipped: ROLLDOCK_VLLM_START is not set; tests/real_vllm.sh installs vLLM and sets it");
        return;
    };
    if shared("vllm/tokenizer").is_none() || shared("data/dapo_math_17k.svs.parquet").is_none() {
        return;
    }
    let port = std::env::var("ROLLDOCK_VLLM_PORT").map_or(18_101, |port| port.parse::<u16>().unwrap());
    let logs = TempDir::new().unwrap();
    let mut first = Vllm::start(&script, logs.path(), port, &SCALE_OUT);
    let mut second = Vllm::start(&script, logs.path(), port + 1, &[]);
    first.wait_until_healthy();
    second.wait_until_healthy();
    if let Some(file) = std::env::var_os("ROLLDOCK_VLLM_AFTER").map(PathBuf::from) {
        wait_within(BUSY, "file that ROLLDOCK_VLLM_AFTER names", || file.exists());
    }

    part("main job", || {
        answers::a_run_over_two_servers_uses_both_dialects_and_cancels_its_requests_when_it_stops(
            &first, &second,
        )
    });
    part("proxy", || answers::a_server_says_the_same_through_the_proxy(&first));

    part("pause", || faults::a_paused_server_is_waited_for(&first, &second));
    part("kill", || faults::a_killed_server_is_replaced_and_used_again_when_it_is_back(&mut first, &second));
    part("SIGTERM", || faults::a_server_after_sigterm_is_found_by_the_stall_rule(&first, &second));

    second.restart(&SCALE_OUT);
    second.wait_until_healthy();
    part("carry", || lifecycle::what_is_cut_off_at_the_end_of_a_step_goes_on_in_the_next(&[&first, &second]));
    part("update, requests kept", || {
        lifecycle::requests_that_are_kept_have_tokens_of_several_versions(&[&first, &second])
    });
    part("update, requests aborted", || {
        lifecycle::requests_that_are_aborted_go_on_from_their_tokens(&[&first, &second])
    });
    part("run killed in an update", || {
        lifecycle::servers_that_a_dead_run_left_paused_go_on(&[&first, &second])
    });
    part("turns with a tool", || turns::the_recipe_with_a_tool_makes_steps_for_a_trainer(&first));
    part("server killed in an update", || {
        lifecycle::a_run_continues_without_a_server_that_dies_while_paused_and_uses_it_when_it_is_back(
            &mut first, &second,
        )
    });
    part("engine fault", || faults::an_engine_that_breaks_costs_attempts_only(&first, &second));
}

/// Runs one part and prints how long it took.
fn part(name: &str, run: impl FnOnce()) {
    let since = Instant::now();
    run();
    eprintln!("{name}: {:.0} s", since.elapsed().as_secs_f64());
}
