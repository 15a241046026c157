//! Chores for developers. `cargo xtask check` is the short check before a commit; `.ci/run` is the long one.
//!
//! The program has no dependencies, so it compiles within seconds.

use std::process::{Command, ExitCode};

/// A named sequence of cargo calls.
struct Chore {
    name: &'static str,
    about: &'static str,
    calls: &'static [&'static [&'static str]],
}

const CHORES: [Chore; 1] = [Chore {
    name: "check",
    about: "format, clippy and the quick unit tests; it needs no server and ends within two minutes on a warm target",
    calls: &[
        &["fmt", "--all", "--check"],
        &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"],
        &[
            "test",
            "--workspace",
            "--lib",
            "--bins",
            "--locked",
            "--quiet",
            "--",
            // Most tests wait most of the time.
            "--test-threads=8",
            // These tests compute for more than four seconds each. `cargo test --workspace` runs them.
            "--skip=a_sleeping_candidate_and_its_children_end_at_the_deadline",
            "--skip=adversarial_latex_takes_linear_time",
            "--skip=adversarial_text_takes_linear_time",
            "--skip=any_two_texts_get_one_verdict",
            "--skip=each_scanner_is_its_expression",
            "--skip=hostile_answers_are_bounded",
            "--skip=only_the_tail_counts",
            "--skip=rules_that_are_skipped_would_change_nothing",
            "--skip=the_marker_is_its_expression",
        ],
    ],
}];

/// Runs cargo with `arguments`, and returns whether it succeeded.
fn call(arguments: &[&str]) -> bool {
    eprintln!("== cargo {}", arguments.join(" "));
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    match Command::new(cargo).args(arguments).status() {
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!("cannot start cargo: {error}");
            false
        }
    }
}

fn main() -> ExitCode {
    let asked = std::env::args().nth(1);
    let Some(chore) = CHORES.iter().find(|chore| asked.as_deref() == Some(chore.name)) else {
        eprintln!("usage: cargo xtask CHORE");
        for chore in &CHORES {
            eprintln!("  {}  {}", chore.name, chore.about);
        }
        return ExitCode::from(2);
    };
    if chore.calls.iter().all(|arguments| call(arguments)) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
