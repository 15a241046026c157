//! The code scorer: runs the program in a response (the *candidate*) against the unit tests of its row, in a
//! [`sandbox`](super::sandbox).
//!
//! `candidate.rs` finds the program in a response, and `cases.rs` reads the tests of a row. Every test runs
//! in a process of its own in an empty directory, so no test sees the files of another. A program passes a
//! test when it exits with 0 and prints the expected text. White space at the ends of lines and at the end of
//! the text does not count. A function passes when it returns the expected value (`value.rs`). Assertions
//! pass when all of them have run. For functions and assertions, common names of the standard library are
//! imported, and `__name__` is not `__main__`.
//!
//! The score is 1 when all tests pass and 0 otherwise, and the first failure ends the job. With `continuous`,
//! the other tests run too, and the score is the share of tests that pass. `acc` is 1 when all tests pass and
//! 0 otherwise; `pred` names the first failure.
//!
//! # Invariants
//! - A failure of a candidate is never an error: the test counts as failed. Only a failure before the
//!   candidate begins is an error. The harness prints its first line when the candidate begins.
//! - Expected outputs and results never enter the sandbox. A candidate cannot pass by printing its input, by
//!   exiting early with 0, or by ending the harness. A check passes only when the harness returns the random
//!   number of this run.
//!
//! # Deliberately absent
//! Only Python is supported. Assertions are not secret: they run in the candidate's interpreter, where the
//! candidate can read them. The comparison tolerates neither rounded numbers nor another order of lines.

mod candidate;
mod cases;
mod config;
mod value;

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::answer::first_chars;
use super::sandbox::{Ended, How, Place, Sandbox, SandboxSpec};
use super::{RewardJob, RewardRunner};
use crate::{RewardError, Score};
use cases::Case;

pub use config::CodeConfig;

/// The program that runs every candidate.
const HARNESS: &str = include_str!("code/harness.py");
/// The first line that the harness prints.
const READY: &[u8] = b"rolldock ready\n";
/// Maximum number of characters of a candidate's output in `pred` and in errors.
const EXCERPT_CHARS_MAX: usize = 100;
/// The signal that the kernel sends at the limit of processor time.
const SIGXCPU: i32 = 24;
/// The name of this runner in errors.
const WHAT: &str = "code";

/// Scores responses by running their code against unit tests.
pub(crate) struct CodeRunner {
    spec: SandboxSpec,
    time_all: Duration,
    is_continuous: bool,
    sandbox: OnceCell<Sandbox>,
    seals: Seals,
    tracker: TaskTracker,
}

/// The result of one test.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    Passed,
    Wrong,
    TimedOut,
    Memory,
    Output,
    ExitedEarly,
    Crashed(String),
}

impl CodeRunner {
    /// Creates a runner; the first job or check looks for a sandbox that works on this host. `attempt` is the
    /// guard's time limit of one attempt. Clean-up tasks run on `tracker`. An error names the wrong key.
    pub(crate) fn new(
        config: &CodeConfig,
        attempt: Duration,
        tracker: TaskTracker,
    ) -> Result<Self, RewardError> {
        let (limits, time_all) = config.limits(attempt)?;
        let spec = SandboxSpec {
            choice: config.sandbox,
            interpreter: config.interpreter.clone(),
            readable: config.readable.clone(),
            directory: config.directory.clone().unwrap_or_else(std::env::temp_dir),
            workers: config.workers,
            limits,
        };
        Ok(Self {
            spec,
            time_all,
            is_continuous: config.continuous,
            sandbox: OnceCell::new(),
            seals: Seals::default(),
            tracker,
        })
    }

    /// Cancel-safe.
    async fn sandbox(&self) -> Result<&Sandbox, RewardError> {
        self.sandbox.get_or_try_init(|| Sandbox::find(&self.spec, &self.tracker)).await
    }

    /// Cancel-safe: the running test is killed, and its directory is removed.
    async fn all(&self, job: &RewardJob) -> Result<Score, RewardError> {
        let cases = cases::read(&job.ground_truth)?;
        self.check_outputs(&cases)?;
        let program = candidate::find(&job.response);
        let sandbox = self.sandbox().await?;
        let place = sandbox.place(program).await?;
        let end = Instant::now() + self.time_all;
        let (mut passed, mut failure) = (0_usize, None);
        for (index, case) in cases.iter().enumerate() {
            let result = match Instant::now() < end {
                true => self.one(sandbox, &place, case, end).await,
                false => Ok(Verdict::TimedOut),
            };
            let is_over = Instant::now() >= end;
            let why = match result {
                Ok(Verdict::Passed) => {
                    passed += 1;
                    continue;
                }
                Ok(Verdict::TimedOut) if is_over => format!("timed out in all at test={}", index + 1),
                // A test that had no time left to start does not show that the sandbox failed.
                Err(_) if is_over && index > 0 => format!("timed out in all at test={}", index + 1),
                Ok(verdict) => words(&verdict, index + 1),
                Err(error) => return Err(error),
            };
            failure.get_or_insert(why);
            if is_over || !self.is_continuous {
                break;
            }
        }
        Ok(score_of(passed, cases.len(), failure, self.is_continuous))
    }

    /// Checks that the limit of output allows the expected outputs; otherwise no candidate could pass.
    fn check_outputs(&self, cases: &[Case]) -> Result<(), RewardError> {
        let most = self.spec.limits.output_bytes;
        let longest = cases.iter().map(|case| match case {
            Case::Program { output, .. } => output.len(),
            Case::Call { expected, .. } => expected.get().len(),
            Case::Check(_) => 0,
        });
        match longest.max() {
            Some(bytes) if bytes > most => Err(RewardError::Misconfigured {
                key: "code.output_bytes_max",
                expected: "at least the bytes of the longest expected output",
                found: format!("{most} for bytes={bytes}"),
            }),
            _ => Ok(()),
        }
    }

    /// Cancel-safe.
    async fn one(
        &self,
        sandbox: &Sandbox,
        place: &Place,
        case: &Case,
        end: Instant,
    ) -> Result<Verdict, RewardError> {
        let seal = self.seals.next();
        let (form, input) = match case {
            Case::Program { input, .. } => ("program", input.clone()),
            Case::Call { name, arguments, .. } => {
                ("call", format!("{{\"call\":{},\"arguments\":{}}}", json!(name), arguments.get()))
            }
            Case::Check(tests) => ("check", json!({ "tests": tests, "seal": seal }).to_string()),
        };
        let words = [HARNESS, form, sandbox.program()];
        let ended = sandbox.run(place, &words, input.as_bytes(), end).await?;
        let Some(said) = ended.stdout.strip_prefix(READY) else { return Err(no_turn(&ended)) };
        Ok(verdict(case, &ended, said, &seal))
    }
}

impl RewardRunner for CodeRunner {
    fn score<'a>(&'a self, job: &'a RewardJob) -> BoxFuture<'a, Result<Score, RewardError>> {
        Box::pin(self.all(job))
    }

    fn check(&self) -> BoxFuture<'_, Result<(), RewardError>> {
        Box::pin(async { self.sandbox().await.map(drop) })
    }
}

fn score_of(passed: usize, total: usize, failure: Option<String>, is_continuous: bool) -> Score {
    let acc = f64::from(passed == total);
    let score = match is_continuous {
        true => passed as f64 / total.max(1) as f64,
        false => acc,
    };
    Score { score, acc, pred: Some(failure.unwrap_or_else(|| "passed".to_owned())), ..Score::default() }
}

fn words(verdict: &Verdict, test: usize) -> String {
    match verdict {
        Verdict::Passed => "passed".to_owned(),
        Verdict::Wrong => format!("wrong answer at test={test}"),
        Verdict::TimedOut => format!("timed out at test={test}"),
        Verdict::Memory => format!("memory at test={test}"),
        Verdict::Output => format!("output at test={test}"),
        Verdict::ExitedEarly => format!("exited early at test={test}"),
        Verdict::Crashed(how) => format!("crashed {how} at test={test}"),
    }
}

/// The error of a run that ended before the candidate began.
fn no_turn(ended: &Ended) -> RewardError {
    let how = match ended.how {
        How::TimedOut => "its time was over before the candidate began".to_owned(),
        How::TooMuchOutput => "it wrote too much before the candidate began".to_owned(),
        How::Exited(code) => format!("exit={code} before the candidate began"),
        How::Signalled(signal) => format!("signal={signal} before the candidate began"),
    };
    RewardError::WorkerDied { what: WHAT.into(), how, stderr: ended.stderr.clone() }
}

/// The result of a test, from the way its run ended. `said` is standard output after the harness's first
/// line.
fn verdict(case: &Case, ended: &Ended, said: &[u8], seal: &str) -> Verdict {
    match ended.how {
        How::TimedOut | How::Signalled(SIGXCPU) => return Verdict::TimedOut,
        How::TooMuchOutput => return Verdict::Output,
        How::Signalled(signal) => return Verdict::Crashed(format!("signal={signal}")),
        How::Exited(0) => {}
        How::Exited(code) => return crash(case, code, &ended.stderr),
    }
    let is_right = match case {
        Case::Program { output, .. } => same_text(said, output),
        // The harness returned nothing, so the candidate has ended the process.
        Case::Call { .. } | Case::Check(_) if said.is_empty() => return Verdict::ExitedEarly,
        Case::Call { expected, .. } => {
            serde_json::from_slice::<&RawValue>(said).is_ok_and(|result| value::is_expected(result, expected))
        }
        Case::Check(_) => said == seal.as_bytes(),
    };
    if is_right { Verdict::Passed } else { Verdict::Wrong }
}

/// The result of a test that exited with a status other than 0, from the last line of the traceback.
fn crash(case: &Case, code: i32, stderr: &str) -> Verdict {
    let last = stderr.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let name = last.split(':').next().unwrap_or_default();
    if name.ends_with("MemoryError") {
        return Verdict::Memory;
    }
    if matches!(case, Case::Check(_)) && name == "AssertionError" {
        return Verdict::Wrong;
    }
    match last.is_empty() {
        true => Verdict::Crashed(format!("exit={code}")),
        false => Verdict::Crashed(format!("exit={code} ({})", excerpt(last))),
    }
}

fn excerpt(text: &str) -> String {
    first_chars(text, EXCERPT_CHARS_MAX)
}

/// Whether two texts are equal, apart from white space at the ends of lines and at the end of the text.
fn same_text(printed: &[u8], expected: &str) -> bool {
    let printed = String::from_utf8_lossy(printed);
    let mut printed = printed.trim_end().lines().map(str::trim_end);
    let mut expected = expected.trim_end().lines().map(str::trim_end);
    loop {
        match (printed.next(), expected.next()) {
            (None, None) => return true,
            (Some(a), Some(b)) if a == b => {}
            _ => return false,
        }
    }
}

/// Draws unpredictable numbers. The harness returns such a number to prove that a check has run. No score
/// depends on their values.
#[derive(Default)]
struct Seals {
    state: RandomState,
    count: AtomicU64,
}

impl Seals {
    fn next(&self) -> String {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        format!("{:016x}{:016x}", self.state.hash_one((number, 0)), self.state.hash_one((number, 1)))
    }
}

#[cfg(test)]
mod tests;
