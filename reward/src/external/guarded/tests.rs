//! Tests of the guard around scripted runners, on a paused clock.

mod outages;
mod workers;

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::join_all;
use serde_json::Value;
use tokio::time::Instant;

use super::*;

/// Answers after `takes`, with the result of `say` for the number of the call.
struct Told {
    takes: Duration,
    say: Box<dyn Fn(usize) -> Result<f64, RewardError> + Send + Sync>,
    calls: AtomicUsize,
    running: AtomicUsize,
    running_max: AtomicUsize,
}

struct Leaves<'a>(&'a AtomicUsize);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Told {
    fn new(
        takes_ms: u64,
        say: impl Fn(usize) -> Result<f64, RewardError> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            takes: Duration::from_millis(takes_ms),
            say: Box::new(say),
            calls: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            running_max: AtomicUsize::new(0),
        })
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }
}

impl RewardRunner for Told {
    fn score<'a>(&'a self, _job: &'a RewardJob) -> BoxFuture<'a, Result<Score, RewardError>> {
        Box::pin(async move {
            let call = self.calls.fetch_add(1, Ordering::Relaxed);
            let running = self.running.fetch_add(1, Ordering::Relaxed) + 1;
            let _leaves = Leaves(&self.running);
            self.running_max.fetch_max(running, Ordering::Relaxed);
            sleep(self.takes).await;
            (self.say)(call).map(|score| Score { score, acc: 0.0, pred: None, ..Score::default() })
        })
    }
}

fn guard() -> Guard {
    Guard {
        concurrency: 8,
        per_second: None,
        retries: 2,
        attempt: Duration::from_secs(5),
        deadline: Duration::from_secs(60),
        cache_entries: 0,
        on_failure: OnFailure::FailSample,
        breaker: None,
    }
}

fn guarded(runner: &Arc<Told>, settings: Guard) -> Arc<Guarded> {
    let runner: Arc<dyn RewardRunner> = Arc::clone(runner) as _;
    Arc::new(Guarded::new(runner, settings, TaskTracker::new(), CancellationToken::new()))
}

fn job(response: &str) -> RewardJob {
    RewardJob {
        response: response.into(),
        ground_truth: "1".into(),
        data_source: "test".into(),
        prompt: "?".into(),
        extra: Arc::new(Value::Null),
    }
}

fn busy(status: u16, retry_after: Option<Duration>) -> RewardError {
    RewardError::Refused { what: "test".into(), status, retry_after, quote: String::new() }
}

async fn score_of(runner: &Guarded, response: &str) -> Result<f64, RewardError> {
    runner.score(&job(response)).await.map(|score| score.score)
}

async fn all(runner: &Guarded, responses: &[String]) -> Vec<Result<f64, RewardError>> {
    join_all(responses.iter().map(|response| score_of(runner, response))).await
}

fn different(count: usize) -> Vec<String> {
    (0..count).map(|number| number.to_string()).collect()
}

#[tokio::test(start_paused = true)]
async fn no_more_jobs_run_than_there_are_places() {
    let told = Told::new(100, |_| Ok(1.0));
    let started = Instant::now();
    let scores = all(&guarded(&told, Guard { concurrency: 3, ..guard() }), &different(12)).await;
    assert!(scores.iter().all(|score| *score == Ok(1.0)));
    assert_eq!(told.running_max.load(Ordering::Relaxed), 3);
    assert!(started.elapsed() >= Duration::from_millis(400), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn the_rate_is_kept() {
    for (per_second, jobs, least_ms, most_ms) in [(10.0, 21, 2000, 2030), (1000.0, 1100, 1000, 1010)] {
        let told = Told::new(0, |_| Ok(1.0));
        let settings = Guard { concurrency: 2000, per_second: Some(per_second), ..guard() };
        let started = Instant::now();
        all(&guarded(&told, settings), &different(jobs)).await;
        let took = started.elapsed().as_millis();
        assert!((least_ms..=most_ms).contains(&took), "{jobs} jobs at {per_second} took {took} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_that_give_up_take_no_turn_with_them() {
    let told = Told::new(0, |_| Ok(1.0));
    let runner = guarded(&told, Guard { concurrency: 200, per_second: Some(1.0), ..guard() });
    score_of(&runner, "first").await.unwrap();
    let given_up = timeout(Duration::from_millis(500), all(&runner, &different(100))).await;
    assert!(given_up.is_err());
    let started = Instant::now();
    score_of(&runner, "next").await.unwrap();
    assert!(started.elapsed() <= Duration::from_millis(510), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn temporary_failures_are_retried_with_doubling_pauses() {
    let told = Told::new(0, |call| if call < 2 { Err(busy(500, None)) } else { Ok(0.5) });
    let started = Instant::now();
    assert_eq!(score_of(&guarded(&told, guard()), "a").await, Ok(0.5));
    assert_eq!(told.calls(), 3);
    let took = started.elapsed().as_millis();
    assert!((300..320).contains(&took), "pauses of 100 and 200 ms took {took} ms");
}

#[tokio::test(start_paused = true)]
async fn retries_end_and_only_some_errors_have_them() {
    for (status, calls) in [(500, 3), (429, 3), (408, 3), (400, 1), (404, 1)] {
        let told = Told::new(0, move |_| Err(busy(status, None)));
        assert_eq!(score_of(&guarded(&told, guard()), "a").await, Err(busy(status, None)));
        assert_eq!(told.calls(), calls, "status {status}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_server_sets_the_pause_before_a_retry() {
    let asked = Duration::from_secs(7);
    let told = Told::new(0, move |call| if call == 0 { Err(busy(429, Some(asked))) } else { Ok(1.0) });
    let started = Instant::now();
    assert_eq!(score_of(&guarded(&told, guard()), "a").await, Ok(1.0));
    assert!((asked..asked + Duration::from_millis(10)).contains(&started.elapsed()));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_has_a_limit_and_so_has_everything() {
    let told = Told::new(10_000_000, |_| Ok(1.0));
    let error = score_of(&guarded(&told, guard()), "a").await.unwrap_err();
    assert_eq!(error, RewardError::TimedOut { after: Duration::from_secs(5) });
    assert_eq!(told.calls(), 3);

    let patient = Guard { retries: 1000, deadline: Duration::from_secs(12), ..guard() };
    let started = Instant::now();
    let error = score_of(&guarded(&told, patient), "a").await.unwrap_err();
    assert_eq!(started.elapsed().as_secs(), 12);
    let words = error.to_string();
    assert!(words.contains("waited for an answer") && words.contains("attempt_s=5"), "{words}");
    assert_eq!(error.class(), ErrorClass::Fault);

    let runner = guarded(&told, Guard { concurrency: 1, deadline: Duration::from_secs(2), ..guard() });
    let _taken = runner.places.acquire().await.unwrap();
    let started = Instant::now();
    let error = score_of(&runner, "a").await.unwrap_err();
    assert!(matches!(error, RewardError::NoTurn { waiting_for, .. } if waiting_for.contains("running jobs")));
    assert_eq!(started.elapsed().as_secs(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_burst_costs_no_job_its_deadline() {
    let told = Told::new(1_000, |_| Ok(1.0));
    let settings = Guard { concurrency: 2, deadline: Duration::from_secs(3), ..guard() };
    let started = Instant::now();
    let scores = all(&guarded(&told, settings.clone()), &different(100)).await;
    assert!(scores.iter().all(|score| *score == Ok(1.0)), "{scores:?}");
    assert_eq!(started.elapsed().as_secs(), 50);
    // A slow rate limit does not make jobs fail either.
    let slow = Guard { concurrency: 100, per_second: Some(1.0), ..settings };
    let scores = all(&guarded(&told, slow), &different(20)).await;
    assert!(scores.iter().all(|score| *score == Ok(1.0)), "{scores:?}");
}

#[tokio::test(start_paused = true)]
async fn jobs_give_up_waiting_for_a_scorer_that_answers_nothing() {
    let told = Told::new(10_000_000, |_| Ok(1.0));
    for cache_entries in [0, 8] {
        let deadline = Duration::from_secs(3);
        let settings = Guard { concurrency: 2, retries: 0, deadline, cache_entries, ..guard() };
        let started = Instant::now();
        let mut responses = different(100);
        responses.extend(vec!["0".to_owned(); 100]);
        let scores = all(&guarded(&told, settings), &responses).await;
        assert!(scores.iter().all(Result::is_err));
        let gave_up = scores.iter().filter(|score| matches!(score, Err(RewardError::NoTurn { .. }))).count();
        assert!(gave_up > 150, "{gave_up}");
        assert!(started.elapsed() <= deadline * 3, "{:?}", started.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_hangs_leaves_time_for_the_next() {
    /// A runner that never answers its first job.
    struct HangsOnce(AtomicUsize);
    impl RewardRunner for HangsOnce {
        fn score<'a>(&'a self, _job: &'a RewardJob) -> BoxFuture<'a, Result<Score, RewardError>> {
            let call = self.0.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move {
                if call == 0 {
                    return std::future::pending().await;
                }
                Ok(Score::right_or_wrong(true, None))
            })
        }
    }
    let settings = Guard { attempt: Duration::from_secs(20), ..guard() };
    let runner: Arc<dyn RewardRunner> = Arc::new(HangsOnce(AtomicUsize::new(0)));
    let runner = Guarded::new(runner, settings, TaskTracker::new(), CancellationToken::new());
    assert_eq!(score_of(&runner, "a").await, Ok(1.0));
}

#[tokio::test(start_paused = true)]
async fn equal_jobs_are_asked_once() {
    let told = Told::new(100, |call| Ok(call as f64));
    let runner = guarded(&told, Guard { cache_entries: 8, ..guard() });
    let equal = vec!["same".to_owned(); 20];
    assert!(all(&runner, &equal).await.iter().all(|score| *score == Ok(0.0)));
    assert_eq!(score_of(&runner, "same").await, Ok(0.0));
    assert_eq!(told.calls(), 1);
    let other_truth = RewardJob { ground_truth: "2".into(), ..job("same") };
    assert_eq!(runner.score(&other_truth).await.unwrap().score, 1.0, "another truth is another job");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_job_hands_its_turn_to_an_equal_one() {
    let told = Told::new(100, |call| Ok(call as f64));
    let runner = guarded(&told, Guard { cache_entries: 8, ..guard() });
    let tracker = TaskTracker::new();
    let leader = tracker.spawn({
        let runner = Arc::clone(&runner);
        async move { score_of(&runner, "same").await }
    });
    sleep(Duration::from_millis(10)).await;
    let follower = tracker.spawn({
        let runner = Arc::clone(&runner);
        async move { score_of(&runner, "same").await }
    });
    sleep(Duration::from_millis(10)).await;
    leader.abort();
    assert_eq!(follower.await.unwrap(), Ok(1.0));
    assert_eq!(told.running.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn failures_are_not_remembered_and_the_cache_has_a_bound() {
    let told = Told::new(0, |call| if call == 0 { Err(busy(400, None)) } else { Ok(1.0) });
    let runner = guarded(&told, Guard { cache_entries: 4, ..guard() });
    assert!(score_of(&runner, "0").await.is_err());
    assert_eq!(score_of(&runner, "0").await, Ok(1.0));
    for response in different(5) {
        score_of(&runner, &response).await.unwrap();
    }
    let calls = told.calls();
    score_of(&runner, "4").await.unwrap();
    assert_eq!(told.calls(), calls, "the last one is still there");
    score_of(&runner, "0").await.unwrap();
    assert_eq!(told.calls(), calls + 1, "the first one had to go");
}

#[tokio::test(start_paused = true)]
async fn the_rule_decides_what_a_failure_means() {
    let told = Told::new(0, |_| Err(busy(400, None)));
    let with = |on_failure| guarded(&told, Guard { on_failure, ..guard() });
    assert_eq!(score_of(&with(OnFailure::FailSample), "a").await, Err(busy(400, None)));
    assert_eq!(score_of(&with(OnFailure::Score(-1.0)), "a").await, Ok(-1.0));
    let stop = score_of(&with(OnFailure::Stop), "a").await.unwrap_err();
    assert_eq!(stop, RewardError::Stop { reason: busy(400, None).to_string() });
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_token_ends_every_job_whatever_the_rule() {
    let told = Told::new(10_000_000, |_| Ok(1.0));
    let token = CancellationToken::new();
    let settings = Guard { on_failure: OnFailure::Score(0.0), concurrency: 1, ..guard() };
    let runner = Arc::new(Guarded::new(Arc::clone(&told) as _, settings, TaskTracker::new(), token.clone()));
    let jobs = TaskTracker::new().spawn(async move { all(&runner, &different(10)).await });
    sleep(Duration::from_millis(10)).await;
    token.cancel();
    assert!(jobs.await.unwrap().iter().all(|score| *score == Err(RewardError::Cancelled)));
    assert_eq!(told.running.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn an_unsound_score_is_an_error() {
    for score in [f64::NAN, f64::INFINITY, 1e39] {
        let error = score_of(&guarded(&Told::new(0, move |_| Ok(score)), guard()), "a").await.unwrap_err();
        assert!(matches!(error, RewardError::Nonsense { .. }), "{error}");
    }
}
