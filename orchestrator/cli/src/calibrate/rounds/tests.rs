use std::cell::Cell;
use std::future::pending;

use tokio::time::sleep;

use super::*;

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

const PLAN: Plan<'_> =
    Plan { server: "http://a:1", time: Duration::from_secs(60), max_batch: 16, max_model_len: Some(4096) };

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
    // All batches but the last two of the first round, after the two pilots.
    let (rounds, elapsed_s) = standing_still_after(2 + all.len() as u32 - 2).await;
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
    let (rounds, elapsed_s) = standing_still_after(2 + all as u32).await;
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
