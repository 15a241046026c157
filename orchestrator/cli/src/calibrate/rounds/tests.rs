use std::cell::Cell;
use std::future::pending;
use std::sync::Arc;

use futures::future::try_join_all;
use rolldock_simengine::{NoAnswers, ServerConfig, SimRequest, SimServer, Workload, WorkloadConfig};
use rolldock_simulate::fit::Fit;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::*;
use crate::calibrate::server::prompt;
use crate::calibrate::undetermined;

#[test]
fn batches_differ_in_size_and_fit_into_the_time() {
    let batches = batches(64, 0.02, 60.0, Some(4096));
    assert_eq!(batches.len(), 12);
    assert!(batches.iter().all(|batch| batch.seqs * batch.prompt_tokens <= PROMPT_TOKENS_MAX));
    let alone: f64 = batches.iter().map(|batch| f64::from(batch.tokens) * 0.02).sum();
    assert!(alone * 2.0 < 60.0 && alone * 12.0 > 60.0, "{alone}");
    // A model with a short context gets short prompts and responses.
    let short = super::batches(4, 0.02, 60.0, Some(64));
    assert!(short.iter().all(|batch| batch.prompt_tokens + batch.tokens <= 64), "{short:?}");
}

#[test]
fn the_median_is_the_middle_time_or_the_mean_of_the_middle_two() {
    assert_eq!(median(&mut []), None);
    assert_eq!(median(&mut [3.0, 1.0, 2.0]), Some(2.0));
    assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), Some(2.5));
}

const PLAN: Plan<'_> = Plan {
    server: "http://a:1",
    time: Duration::from_secs(60),
    max_batch: 16,
    max_model_len: Some(4096),
    cache_tokens: None,
};

/// The time of a batch on a server that needs 5 ms for a token of a batch.
fn time(batch: Batch) -> Duration {
    Duration::from_millis(u64::from(batch.tokens) * 5)
}

/// Measures a server that stands still when it has answered `answers` batches. Returns the result and the
/// number of seconds.
async fn standing_still_after(answers: u32) -> (anyhow::Result<Rounds>, u64) {
    let (began, left) = (Instant::now(), Cell::new(answers));
    let send = async |batch: Batch| {
        match left.get().checked_sub(1) {
            None => pending().await,
            Some(fewer) => left.set(fewer),
        }
        sleep(time(batch)).await;
        Ok(())
    };
    (measure(send, &PLAN).await, began.elapsed().as_secs())
}

#[tokio::test(start_paused = true)]
async fn a_first_request_without_an_answer_is_an_error_that_names_the_server() {
    let (rounds, elapsed_s) = standing_still_after(0).await;
    let error = format!("{:#}", rounds.unwrap_err());
    assert!(error.starts_with("http://a:1 did not answer the first request, 1 x (16 prompt"), "{error}");
    assert_eq!(elapsed_s, 600);
    let (rounds, elapsed_s) = standing_still_after(1).await;
    let error = format!("{:#}", rounds.unwrap_err());
    assert!(error.contains("the second request") && error.contains("the 60 s of --seconds"), "{error}");
    assert_eq!(elapsed_s, 60);
}

#[tokio::test(start_paused = true)]
async fn batches_that_were_never_measured_are_an_error() {
    let all = batches(PLAN.max_batch, 0.005, 60.0, PLAN.max_model_len);
    // All batches but the last two of the first round, after the three pilots.
    let (rounds, elapsed_s) = standing_still_after(3 + all.len() as u32 - 2).await;
    let error = format!("{:#}", rounds.unwrap_err());
    let words = format!("http://a:1: 2 of {} batches were not measured within the 60 s", all.len());
    assert!(error.starts_with(&words), "{error}");
    let [.., before, last] = &all[..] else { panic!("{all:?}") };
    assert!(
        error.contains(&format!("--seconds: {before}, {last}; the batch {before} had no answer")),
        "{error}"
    );
    assert_eq!(elapsed_s, 60);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stands_still_in_a_later_round_is_a_warning() {
    let all = batches(PLAN.max_batch, 0.005, 60.0, PLAN.max_model_len).len();
    let (rounds, elapsed_s) = standing_still_after(3 + all as u32).await;
    let rounds = rounds.unwrap();
    assert_eq!((rounds.measured.len(), elapsed_s), (all, 60));
    let [warning] = &rounds.warnings[..] else { panic!("{:?}", rounds.warnings) };
    assert!(warning.starts_with("warning: http://a:1 did not answer the last batch, 1 x (16"), "{warning}");
    // A batch that is cut off at the end of the time is no reason for a warning.
    let (rounds, _) = standing_still_after(u32::MAX).await;
    let rounds = rounds.unwrap();
    assert_eq!(rounds.warnings, Vec::<String>::new());
    for batch in &rounds.measured {
        assert!((batch.seconds - 0.005 * f64::from(batch.tokens)).abs() < 0.002, "{batch:?}");
    }
}

/// The cost per token in the KV cache that is fitted for a simulated server in virtual time, in ns, and the
/// warning if it is not determined. The server's times are longer than in the model by up to `noise`.
async fn fitted_kv_ns(plan: &Plan<'_>, noise: f64) -> (f64, Option<String>) {
    let (tracker, end) = (TaskTracker::new(), CancellationToken::new());
    let workload = Arc::new(Workload::new(WorkloadConfig::default()));
    let answers = Arc::new(NoAnswers);
    let server = SimServer::start(ServerConfig::default(), workload, answers, &tracker, end.clone()).unwrap();
    let number = Cell::new(0);
    let send = async |batch: Batch| {
        let began = Instant::now();
        let request = |_| {
            number.set(number.get() + 1);
            let ids = prompt(number.get(), batch.prompt_tokens);
            server.generate(SimRequest {
                max_tokens: Some(batch.tokens),
                min_tokens: batch.tokens,
                ignore_eos: true,
                ..SimRequest::new(format!("r-{}", number.get()), ids, number.get())
            })
        };
        try_join_all((0..batch.seqs).map(request)).await?;
        let turns = number.get() as f64 * 0.618_033_988_749_895;
        sleep(began.elapsed().mul_f64(noise * turns.fract())).await;
        Ok(())
    };
    let rounds = measure(send, plan).await.unwrap();
    assert_eq!((server.stats().preemptions_total, rounds.warnings.len()), (0, 0));
    end.cancel();
    let fit = Fit::new(&rounds.measured).unwrap();
    (1e9 * fit.per_kv_token_s, undetermined(&fit, &rounds.measured))
}

#[tokio::test(start_paused = true)]
async fn the_cost_per_token_in_the_cache_is_found_or_there_is_a_warning() {
    let truth = ServerConfig::default();
    let whole = Plan {
        max_batch: 64,
        max_model_len: Some(truth.max_model_len),
        cache_tokens: Some(truth.kv_blocks * truth.block_tokens),
        ..PLAN
    };
    let cost_ns = truth.decode_ns_per_kv_token as f64;
    for noise in [0.0, 0.01, 0.03] {
        let (found_ns, warning) = fitted_kv_ns(&whole, noise).await;
        assert!((found_ns / cost_ns - 1.0).abs() < 0.25, "{noise}: {found_ns}");
        assert_eq!(warning, None, "{noise}: {found_ns}");
    }
    // Two requests with short prompts fill a few hundred tokens of the cache.
    let small = Plan { max_batch: 2, max_model_len: Some(256), ..whole };
    let (_, warning) = fitted_kv_ns(&small, 0.03).await;
    let warning = warning.unwrap();
    assert!(warning.starts_with("warning: decode_ns_per_kv_token is not determined: "), "{warning}");
}

#[test]
fn the_fullest_batches_stay_within_cache_model_and_time() {
    let plan = Plan { max_batch: 64, max_model_len: Some(8192), cache_tokens: Some(384_000), ..PLAN };
    let batches = batches(64, 0.0055, 60.0, plan.max_model_len);
    let tokens = batches.iter().map(|batch| batch.tokens).max().unwrap();
    let prompts = |prefill_s: f64, plan: Plan<'_>| {
        let full = fullest(&batches, prefill_s, &plan);
        assert!(full.iter().all(|batch| batch.seqs == 64), "{full:?}");
        full.iter().map(|batch| (batch.prompt_tokens, batch.tokens)).collect::<Vec<_>>()
    };
    // The time: an eighth of 15 s, at 32 us for a token.
    assert_eq!(prompts(32e-6, plan), [(915, 1), (915, tokens)]);
    // The cache: 80 % of it.
    let room = (307_200 - 64 * tokens) / 64;
    assert_eq!(prompts(1e-9, plan), [(room, 1), (room, tokens)]);
    // The longest sequence.
    let short = Plan { max_model_len: Some(2048), ..plan };
    assert_eq!(prompts(1e-9, short), [(2048 - tokens, 1), (2048 - tokens, tokens)]);
    // A slow server, a small cache, and a cache of unknown size.
    assert_eq!(prompts(1e-3, plan), []);
    assert_eq!(prompts(1e-9, Plan { cache_tokens: Some(4096), ..plan }), []);
    assert_eq!(prompts(1e-9, Plan { cache_tokens: None, ..plan }), []);
}
