//! The batches of a calibration, and the rounds in which they are measured.
//!
//! # Invariants
//! Each wait for the server has a deadline: the first request has [`PILOT_LIMIT`], and all others end with the
//! time of the measurement. A measurement that lacks a batch is an error.

use std::fmt;
use std::time::Duration;

use anyhow::Context;
use rolldock_simulate::fit::Measured;
use tokio::time::{Instant, timeout, timeout_at};

/// Number of rounds for which the longest batches leave time.
const ROUNDS: f64 = 4.0;
/// The length of the prompts of most batches, and of long prompts, in tokens.
const SHORT_PROMPT: u32 = 16;
const LONG_PROMPT: u32 = 1024;
/// Maximum number of prompt tokens of a batch. vLLM computes about this many in one step.
const PROMPT_TOKENS_MAX: u32 = 8192;
/// The limits of the length of long responses, in tokens.
const LONG_RESPONSE_MIN: u32 = 16;
const LONG_RESPONSE_MAX: u32 = 512;
/// The factor by which short responses are shorter than long responses.
const SHORTER: u32 = 4;
/// The longest wait for the first request, for which a server may compile the model or capture graphs.
const PILOT_LIMIT: Duration = Duration::from_secs(600);
/// A batch that takes this many times as long as before has probably met a server that stands still.
const STANDSTILL: u32 = 10;

/// What is known of a measurement before it begins.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan<'a> {
    /// The server's URL, for errors.
    pub(super) server: &'a str,
    /// The time of the measurement.
    pub(super) time: Duration,
    /// The largest number of requests that are sent together.
    pub(super) max_batch: u32,
    /// Maximum number of tokens of prompt and response together.
    pub(super) max_model_len: Option<u32>,
}

/// The shape of a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Batch {
    pub(super) seqs: u32,
    pub(super) prompt_tokens: u32,
    pub(super) tokens: u32,
}

impl fmt::Display for Batch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seqs, prompt_tokens, tokens } = self;
        write!(formatter, "{seqs} x ({prompt_tokens} prompt + {tokens} response tokens)")
    }
}

/// The measured batches.
#[derive(Debug)]
pub(super) struct Rounds {
    /// The median of each batch.
    pub(super) measured: Vec<Measured>,
    /// What the user should know of the measurement.
    pub(super) warnings: Vec<String>,
}

/// A batch that was running when the time was over.
struct Cut {
    batch: Batch,
    waited: Duration,
}

/// Measures batches until the time is over. `send` sends a batch, and returns when its last request has ended.
///
/// # Errors
/// Errors of `send`, and an error that names the server and the batches if a batch was never measured.
pub(super) async fn measure(
    send: impl AsyncFn(Batch) -> anyhow::Result<()>,
    plan: &Plan<'_>,
) -> anyhow::Result<Rounds> {
    let pilot = Batch { seqs: 1, prompt_tokens: SHORT_PROMPT, tokens: LONG_RESPONSE_MIN };
    let (server, limit_s) = (plan.server, PILOT_LIMIT.as_secs());
    timeout(PILOT_LIMIT, send(pilot)).await.with_context(|| {
        format!("{server} did not answer the first request, {pilot}, within {limit_s} s")
    })??;
    let end = Instant::now() + plan.time;
    let began = Instant::now();
    let time_s = plan.time.as_secs_f64();
    timeout_at(end, send(pilot)).await.with_context(|| {
        format!("{server} did not answer the second request, {pilot}, within the {time_s} s of --seconds")
    })??;
    let token_s = began.elapsed().as_secs_f64() / f64::from(pilot.tokens);

    let batches = batches(plan.max_batch, token_s, time_s, plan.max_model_len);
    let mut times: Vec<Vec<Duration>> = vec![Vec::new(); batches.len()];
    let cut = 'rounds: loop {
        for (batch, times) in batches.iter().zip(&mut times) {
            let began = Instant::now();
            match timeout_at(end, send(*batch)).await {
                Ok(sent) => sent.map(|()| times.push(began.elapsed()))?,
                Err(_elapsed) => break 'rounds Cut { batch: *batch, waited: began.elapsed() },
            }
        }
    };
    check_whole(&batches, &times, &cut, plan)?;
    let warnings = standstill(&batches, &times, &cut, server).into_iter().collect();
    let measured = batches.iter().zip(&times).filter_map(|(batch, times)| {
        let Batch { seqs, prompt_tokens, tokens } = *batch;
        let mut seconds: Vec<f64> = times.iter().map(Duration::as_secs_f64).collect();
        Some(Measured { seqs, prompt_tokens, tokens, seconds: median(&mut seconds)? })
    });
    Ok(Rounds { measured: measured.collect(), warnings })
}

/// Returns an error if a batch was never measured. The constants would not hold for batches of its size.
fn check_whole(batches: &[Batch], times: &[Vec<Duration>], cut: &Cut, plan: &Plan<'_>) -> anyhow::Result<()> {
    let all = batches.iter().zip(times);
    let missing: Vec<String> =
        all.filter(|(_, times)| times.is_empty()).map(|(batch, _)| batch.to_string()).collect();
    let (server, time_s, waited_s) = (plan.server, plan.time.as_secs_f64(), cut.waited.as_secs_f64());
    anyhow::ensure!(
        missing.is_empty(),
        "{server}: {} of {} batches were not measured within the {time_s} s of --seconds: {}; the batch {} had \
         no answer after {waited_s:.1} s; if the server still answers, raise --seconds or lower --max-batch",
        missing.len(),
        batches.len(),
        missing.join(", "),
        cut.batch,
    );
    Ok(())
}

/// A warning if the last batch took much longer than before.
fn standstill(batches: &[Batch], times: &[Vec<Duration>], cut: &Cut, server: &str) -> Option<String> {
    let place = batches.iter().position(|batch| *batch == cut.batch)?;
    let longest = times[place].iter().max()?;
    let (waited_s, longest_s) = (cut.waited.as_secs_f64(), longest.as_secs_f64());
    (cut.waited > *longest * STANDSTILL).then(|| {
        format!(
            "warning: {server} did not answer the last batch, {}, within {waited_s:.1} s; before, the batch took \
             at most {longest_s:.1} s",
            cut.batch
        )
    })
}

/// The batches of a round. `token_s` is the time of a token of a single request, in seconds. Batches are so
/// short that several rounds fit into `time_s` seconds, if larger batches are not much slower.
fn batches(max_batch: u32, token_s: f64, time_s: f64, max_model_len: Option<u32>) -> Vec<Batch> {
    let mut sizes: Vec<u32> = std::iter::successors(Some(1_u32), |size| size.checked_mul(4))
        .take_while(|size| *size < max_batch)
        .collect();
    sizes.push(max_batch);
    let longest = max_model_len.unwrap_or(u32::MAX);
    // Each size has one batch of long and two of short responses: 1.5 times the time of the long batch. The
    // divisor is 3, because larger batches take longer than single requests.
    let long_s = time_s / ROUNDS / sizes.len() as f64 / 3.0;
    let long =
        ((long_s / token_s) as u32).clamp(LONG_RESPONSE_MIN, LONG_RESPONSE_MAX).min(longest / 4).max(1);
    let short = (long / SHORTER).max(1);
    let mut batches = Vec::new();
    for seqs in sizes {
        let long_prompt = LONG_PROMPT.min(longest / 2).min(PROMPT_TOKENS_MAX / seqs).max(SHORT_PROMPT);
        for (prompt_tokens, tokens) in [(SHORT_PROMPT, short), (long_prompt, short), (SHORT_PROMPT, long)] {
            let batch = Batch { seqs, prompt_tokens, tokens };
            if !batches.contains(&batch) {
                batches.push(batch);
            }
        }
    }
    batches
}

fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        even if even.is_multiple_of(2) => Some((values[middle - 1] + values[middle]) / 2.0),
        _ => Some(values[middle]),
    }
}

#[cfg(test)]
mod tests;
