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
    let plan = Plan { server: server.url(), time, max_batch, max_model_len: facts.max_model_len };
    let Rounds { measured, warnings } = measure(async |batch| server.batch(batch).await, &plan).await?;
    let fit = Fit::new(&measured).context("--seconds: the time is too short for this server")?;
    Ok(Calibration { fit, facts, measured, warnings })
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
