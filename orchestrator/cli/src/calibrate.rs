//! `rolldock calibrate`: measures the speed and the KV cache of a server, and writes the constants of a
//! simulated server with this speed and this cache.
//!
//! Batches of several sizes are sent in rounds until the time is over: few and many requests, short and long
//! prompts, short and long responses, and prompts that fill the KV cache as far as the time allows. Each batch
//! has prompts that no earlier batch had, also not in an earlier calibration, so no prefix is cached. The
//! median time of each batch is fitted (see [`rolldock_simulate::fit`]).
//!
//! # Deliberately absent
//! The command does not find out how many sequences the server runs at a time (`max_num_seqs`), or the size of
//! the server's KV cache: vLLM reports the size of its cache.

mod rounds;
mod server;

use std::fmt::Write;
use std::fs::OpenOptions;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use rolldock_process::{say, say_error};
use rolldock_simengine::EngineModel;
use rolldock_simulate::fit::{Fit, Measured};

use crate::args::CalibrateArgs;
use crate::usage::{seconds, sendable};
use rounds::{Plan, Rounds, measure};
use server::{Facts, Server};

/// The longest wait for an answer that needs no generated token.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// The largest standard error of the cost per token in the KV cache that counts as determined, as a share of the
/// cost.
const KV_ERROR_MAX: f64 = 0.125;

/// Measures the server and writes the file.
pub async fn run(args: CalibrateArgs) -> anyhow::Result<()> {
    let time = seconds("--seconds", args.seconds)?;
    let api_key = sendable("--api-key", args.api_key.as_deref())?;
    check_writable(&args.output)?;
    let server = Server::open(&args.endpoint, api_key, rand::random(), ANSWER_LIMIT).await?;
    let calibration = calibrate(&server, time, args.max_batch).await?;
    let text = format!("# Measured by `rolldock calibrate {}`.\n{}", args.endpoint, calibration.to_toml());
    // The result is printed first, so that it is not lost if the file cannot be written.
    say_error(&calibration.table());
    calibration.warnings.iter().for_each(|warning| say_error(warning));
    say(&text);
    std::fs::write(&args.output, &text).with_context(|| format!("cannot write {}", args.output.display()))
}

/// The result of a calibration.
#[derive(Debug)]
struct Calibration {
    fit: Fit,
    facts: Facts,
    /// The median of each batch.
    measured: Vec<Measured>,
    /// What the user should know of the measurement.
    warnings: Vec<String>,
}

/// Measures the server for this time.
async fn calibrate(server: &Server, time: Duration, max_batch: u32) -> anyhow::Result<Calibration> {
    let facts = server.facts.clone();
    let plan = Plan {
        server: server.url(),
        time,
        max_batch,
        max_model_len: facts.max_model_len,
        cache_tokens: facts.cache_tokens(),
    };
    let Rounds { measured, mut warnings } = measure(async |batch| server.batch(batch).await, &plan).await?;
    let fit = Fit::new(&measured).context("--seconds: the time is too short for this server")?;
    warnings.extend(undetermined(&fit, &measured));
    Ok(Calibration { fit, facts, measured, warnings })
}

/// A warning if the measurement does not determine the cost per token in the KV cache.
fn undetermined(fit: &Fit, measured: &[Measured]) -> Option<String> {
    let error_s = fit.per_kv_token_error_s(measured);
    if error_s.is_some_and(|error_s| error_s <= KV_ERROR_MAX * fit.per_kv_token_s) {
        return None;
    }
    let error = error_s.map_or("an unknown error".to_owned(), |error_s| format!("{:.1} ns", 1e9 * error_s));
    Some(format!(
        "warning: decode_ns_per_kv_token is not determined: {:.1} ns ± {error}; raise --seconds or --max-batch, so \
         that batches fill more of the KV cache",
        1e9 * fit.per_kv_token_s
    ))
}

/// Checks that the file of the result can be written. A file that is there stays as it is.
fn check_writable(output: &Path) -> anyhow::Result<()> {
    let is_new = std::fs::symlink_metadata(output).is_err();
    let opened = OpenOptions::new().append(true).create(true).open(output);
    opened.with_context(|| format!("--output: cannot write {}", output.display()))?;
    if is_new {
        std::fs::remove_file(output).with_context(|| format!("cannot remove {}", output.display()))?;
    }
    Ok(())
}

impl Calibration {
    fn model(&self) -> EngineModel {
        let Facts { max_model_len, kv_blocks, block_tokens, .. } = self.facts;
        let cache = self.facts.cache_tokens();
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
