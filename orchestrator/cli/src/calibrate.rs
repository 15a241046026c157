//! `rolldock calibrate`: measures the speed and the KV cache of a server, and writes the constants of a
//! simulated server with this speed and this cache.
//!
//! Batches of several sizes are sent in rounds until the time is over: few and many requests, short and long
//! prompts, short and long responses. Each batch has prompts that no earlier batch had, also not in an earlier
//! calibration, so no prefix is cached. The median time of each batch is fitted (see [`rolldock_simulate::fit`]).
//!
//! # Deliberately absent
//! The command does not find out how many sequences the server runs at a time (`max_num_seqs`), and does not
//! fill the server's KV cache: vLLM reports the size of its cache.

mod server;

use std::fmt::Write;
use std::time::Duration;

use anyhow::Context;
use rolldock_process::{say, say_error};
use rolldock_simengine::EngineModel;
use rolldock_simulate::fit::{Fit, Measured};
use tokio::time::Instant;

use crate::args::CalibrateArgs;
use crate::usage::{seconds, sendable};
use server::{Facts, Server};

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

/// Measures the server and writes the file.
pub async fn run(args: CalibrateArgs) -> anyhow::Result<()> {
    let time = seconds("--seconds", args.seconds)?;
    let api_key = sendable("--api-key", args.api_key.as_deref())?;
    let server = Server::open(&args.endpoint, api_key, rand::random()).await?;
    let calibration = calibrate(&server, time, args.max_batch).await?;
    let text = format!("# Measured by `rolldock calibrate {}`.\n{}", args.endpoint, calibration.to_toml());
    std::fs::write(&args.output, &text).with_context(|| format!("cannot write {}", args.output.display()))?;
    say_error(&calibration.table());
    say(&text);
    Ok(())
}

/// The result of a calibration.
#[derive(Debug)]
struct Calibration {
    fit: Fit,
    facts: Facts,
    /// The median of each batch.
    measured: Vec<Measured>,
}

/// The shape of a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Batch {
    seqs: u32,
    prompt_tokens: u32,
    tokens: u32,
}

/// Measures batches until `time` is over.
async fn calibrate(server: &Server, time: Duration, max_batch: u32) -> anyhow::Result<Calibration> {
    let end = Instant::now() + time;
    let pilot = Batch { seqs: 1, prompt_tokens: SHORT_PROMPT, tokens: LONG_RESPONSE_MIN };
    // The first request may be slow, because the server compiles or captures graphs for it.
    server.batch(pilot).await?;
    let token_s = server.batch(pilot).await?.as_secs_f64() / f64::from(pilot.tokens);
    let batches = batches(max_batch, token_s, time.as_secs_f64(), server.facts.max_model_len);
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); batches.len()];
    'rounds: loop {
        for (batch, times) in batches.iter().zip(&mut times) {
            let left = end.saturating_duration_since(Instant::now());
            match tokio::time::timeout(left, server.batch(*batch)).await {
                Ok(measured) => times.push(measured?.as_secs_f64()),
                Err(_elapsed) => break 'rounds,
            }
        }
    }
    let measured: Vec<Measured> = batches
        .iter()
        .zip(&mut times)
        .filter_map(|(batch, times)| {
            let Batch { seqs, prompt_tokens, tokens } = *batch;
            Some(Measured { seqs, prompt_tokens, tokens, seconds: median(times)? })
        })
        .collect();
    let fit = Fit::new(&measured).context("--seconds: the time is too short for this server")?;
    Ok(Calibration { fit, facts: server.facts.clone(), measured })
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

impl Calibration {
    fn model(&self) -> EngineModel {
        let Facts { max_model_len, kv_blocks, block_tokens, .. } = self.facts;
        let cache = kv_blocks.zip(block_tokens).map(|(blocks, tokens)| blocks.saturating_mul(tokens));
        // The cache of a simulated server must hold more than the longest sequence.
        let holds = |longest: u32| cache.map_or(longest, |cache| longest.min(cache.saturating_sub(1)));
        EngineModel { kv_blocks, block_tokens, max_model_len: max_model_len.map(holds), ..self.fit.model() }
    }

    /// The section of a recipe.
    fn to_toml(&self) -> String {
        let model = self.model();
        let wide = [
            ("prefill_ns_per_token", model.prefill_ns_per_token),
            ("decode_base_ns", model.decode_base_ns),
            ("decode_ns_per_seq", model.decode_ns_per_seq),
            ("decode_ns_per_kv_token", model.decode_ns_per_kv_token),
            ("kv_blocks", model.kv_blocks.map(u64::from)),
            ("block_tokens", model.block_tokens.map(u64::from)),
            ("max_model_len", model.max_model_len.map(u64::from)),
        ];
        let mut text = "[fleet.simulated.engine]\n".to_owned();
        for (key, value) in wide {
            if let Some(value) = value {
                let _ = writeln!(text, "{key} = {value}");
            }
        }
        text
    }

    /// The measured batches beside the model.
    fn table(&self) -> String {
        let mut text = "requests  prompt  response  measured     model  difference\n".to_owned();
        for batch in &self.measured {
            let model = self.fit.seconds(batch);
            let Measured { seqs, prompt_tokens, tokens, seconds } = batch;
            let difference = 100.0 * (model / seconds - 1.0);
            let _ = writeln!(
                text,
                "{seqs:>8}  {prompt_tokens:>6}  {tokens:>8}  {seconds:>7.3} s  {model:>7.3} s  {difference:>+8.1} %"
            );
        }
        let _ = write!(text, "overhead of a batch: {:.1} ms", 1e3 * self.fit.overhead_s);
        if self.facts.kv_blocks.is_none() {
            text.push_str("\nthe server does not report the size of its KV cache; the default size is used");
        }
        text
    }
}

#[cfg(test)]
mod tests;
