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
/// The share of the KV cache that the fullest batches may fill, so that the server preempts no sequence.
const CACHE_SHARE: f64 = 0.8;
/// The part of a round in which the prompts of a fullest batch may be computed.
const FULL_PROMPTS: f64 = 1.0 / 8.0;
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
    /// The size of the KV cache in tokens.
    pub(super) cache_tokens: Option<u32>,
}

impl Plan<'_> {
    fn longest(&self) -> u32 {
        self.max_model_len.unwrap_or(u32::MAX)
    }
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
    let late = |which: &str, batch: Batch| {
        format!("{server} did not answer the {which} request, {batch}, within the {time_s} s of --seconds")
    };
    timeout_at(end, send(pilot)).await.with_context(|| late("second", pilot))??;
    let pilot_s = began.elapsed().as_secs_f64();
    let token_s = pilot_s / f64::from(pilot.tokens);
    let long = Batch { prompt_tokens: long_prompt(1, plan.longest()), ..pilot };
    let began = Instant::now();
    timeout_at(end, send(long)).await.with_context(|| late("third", long))??;
    let prefill_s = prefill(began.elapsed().as_secs_f64(), pilot_s, long, pilot);

    let mut batches = batches(plan.max_batch, token_s, time_s, plan.max_model_len);
    batches.extend(fullest(&batches, prefill_s, plan));
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
        let long_prompt = long_prompt(seqs, longest);
        for (prompt_tokens, tokens) in [(SHORT_PROMPT, short), (long_prompt, short), (SHORT_PROMPT, long)] {
            let batch = Batch { seqs, prompt_tokens, tokens };
            if !batches.contains(&batch) {
                batches.push(batch);
            }
        }
    }
    batches
}

/// The length of the long prompts of most batches, in tokens.
fn long_prompt(seqs: u32, longest: u32) -> u32 {
    LONG_PROMPT.min(longest / 2).min(PROMPT_TOKENS_MAX / seqs).max(SHORT_PROMPT)
}

/// The cost of a prompt token in seconds, roughly, by the times of a long and a short prompt. It is not 0 if the
/// short prompt happened to be slower.
fn prefill(long_s: f64, short_s: f64, long: Batch, short: Batch) -> f64 {
    let further = f64::from((long.prompt_tokens - short.prompt_tokens).max(1));
    let least = long_s / f64::from(long.prompt_tokens) / 16.0;
    ((long_s - short_s) / further).max(least)
}

/// The largest batches with prompts that fill as much of the KV cache as the time allows: one with a single
/// response token, which measures the prompts, and one with long responses. The difference shows the cost per
/// token in the cache. Empty if the other batches fill as much, or if the size of the cache is not known.
fn fullest(batches: &[Batch], prefill_s: f64, plan: &Plan<'_>) -> Vec<Batch> {
    let Some(cache_tokens) = plan.cache_tokens else { return Vec::new() };
    let tokens = batches.iter().map(|batch| batch.tokens).max().unwrap_or(1);
    let seqs = plan.max_batch;
    let in_time = plan.time.as_secs_f64() / ROUNDS * FULL_PROMPTS / prefill_s;
    let in_cache = f64::from(cache_tokens) * CACHE_SHARE - f64::from(seqs) * f64::from(tokens);
    // A negative number becomes 0.
    let fits = (in_time.min(in_cache) / f64::from(seqs)) as u32;
    let prompt_tokens = fits.min(plan.longest().saturating_sub(tokens));
    if prompt_tokens <= long_prompt(seqs, plan.longest()) {
        return Vec::new();
    }
    [1, tokens].map(|tokens| Batch { seqs, prompt_tokens, tokens }).into()
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
