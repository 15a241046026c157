//! Chores for developers. `cargo xtask check` is the short check before a commit; `.ci/run` is the long one.
//!
//! Most tests wait most of the time, so the tests run in parallel with clippy, and the slowest tests run in
//! parallel with the other tests. Cargo locks the target folder while it compiles. The tests are therefore
//! built first, and a call starts only when the calls before it have released the lock.
//!
//! The program has no dependencies, so it compiles within seconds.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

/// Arguments of cargo.
type Call = &'static [&'static str];

/// A named sequence of steps. The calls of a step run at the same time.
struct Chore {
    name: &'static str,
    about: &'static str,
    steps: &'static [&'static [Call]],
}

const CHORES: [Chore; 1] = [Chore {
    name: "check",
    about: "format, clippy and the quick unit tests; it needs no server and ends within two minutes on a warm target",
    steps: &[
        &[&["fmt", "--all", "--check"]],
        &[&["test", "--workspace", "--lib", "--bins", "--locked", "--no-run"]],
        &[
            // The tests of rewards start processes and wait for them.
            &[
                "test",
                "--workspace",
                "--lib",
                "--bins",
                "--locked",
                "--",
                "--quiet",
                "--test-threads=8",
                "external::",
                // This test waits for several deadlines. `cargo test --workspace` runs it.
                "--skip=a_sleeping_candidate_and_its_children_end_at_the_deadline",
            ],
            &[
                "test",
                "--workspace",
                "--lib",
                "--bins",
                "--locked",
                "--",
                "--quiet",
                "--test-threads=8",
                "--skip=external::",
                // These tests compute for more than four seconds each. `cargo test --workspace` runs them.
                "--skip=a_cut_shows_the_table_at_its_begin",
                "--skip=a_rational_is_itself_however_it_is_written",
                "--skip=a_re_encoder_is_caught_by_random_ids_of_qwen3",
                "--skip=a_resumed_cursor_goes_on_as_the_first_would",
                "--skip=adversarial_latex_takes_linear_time",
                "--skip=adversarial_text_takes_linear_time",
                "--skip=any_two_texts_get_one_verdict",
                "--skip=arrow_does_not_panic_whatever_the_damage",
                "--skip=dapo_math_17k_has_the_known_facts",
                "--skip=each_scanner_is_its_expression",
                "--skip=hostile_answers_are_bounded",
                "--skip=only_the_tail_counts",
                "--skip=our_own_data_set_is_sound",
                "--skip=rules_that_are_skipped_would_change_nothing",
                "--skip=runs_give_what_single_bytes_give",
                "--skip=ten_thousand_abandoned_sessions",
                "--skip=the_breaker_does_what_its_model_does",
                "--skip=the_constants_of_a_simulated_server_are_found",
                "--skip=the_generators_reproduce_the_committed_files",
                "--skip=the_marker_is_its_expression",
                "--skip=the_replay_of_a_run_has_its_step_times",
                "--skip=the_size_is_right_although_blocks_are_copied",
                "--skip=whatever_fails_and_dies_the_invariants_hold",
            ],
            &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"],
        ],
    ],
}];

/// A call that runs beside others, with threads that collect its output.
struct Beside {
    call: Call,
    child: Child,
    outputs: [JoinHandle<Vec<u8>>; 2],
}

fn command(call: Call) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(call);
    command
}

fn title(call: Call) -> String {
    format!("== cargo {}", call.join(" "))
}

/// Reads a stream to its end. Notifies `begun` of each line that shows that cargo runs a test program.
fn collect(stream: impl Read + Send + 'static, begun: Sender<()>) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut output = Vec::new();
        for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
            if line.trim_ascii_start().starts_with(b"Running") {
                // The receiver waits only for the first line.
                let _ = begun.send(());
            }
            output.extend(line);
            output.push(b'\n');
        }
        output
    })
}

impl Beside {
    /// Starts a call, and waits until its tests run or it has ended.
    fn start(call: Call) -> io::Result<Self> {
        let (begun, first) = mpsc::channel();
        let mut command = command(call);
        // In colours, the lines that `collect` looks for begin with an escape sequence.
        command.env("CARGO_TERM_COLOR", "never").stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(io::Error::other("the output of cargo is not captured"));
        };
        let outputs = [collect(stdout, begun.clone()), collect(stderr, begun)];
        // An error means that both streams have ended.
        let _ = first.recv();
        Ok(Self { call, child, outputs })
    }

    /// Waits for the end, prints the output, and returns whether the call succeeded.
    fn end(mut self) -> io::Result<bool> {
        let mut target = io::stderr().lock();
        writeln!(target, "{}", title(self.call))?;
        for output in self.outputs {
            target.write_all(&output.join().map_err(|_| io::Error::other("a reader of output panicked"))?)?;
        }
        Ok(self.child.wait()?.success())
    }
}

/// Runs the calls of a step, the last one with its output shown immediately.
fn run(step: &[Call]) -> io::Result<bool> {
    let Some((last, before)) = step.split_last() else { return Ok(true) };
    let mut beside = Vec::new();
    for call in before {
        beside.push(Beside::start(call)?);
    }
    eprintln!("{}", title(last));
    let mut succeeded = command(last).status()?.success();
    for call in beside {
        succeeded &= call.end()?;
    }
    Ok(succeeded)
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
    for step in chore.steps {
        match run(step) {
            Ok(true) => {}
            Ok(false) => return ExitCode::FAILURE,
            Err(error) => {
                eprintln!("cargo xtask {}: {error}", chore.name);
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
