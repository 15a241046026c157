//! Outages of a scripted reward, on a paused clock.

use super::*;
use crate::RewardState;

const BREAKER: BreakerConfig = BreakerConfig {
    failures_max: 8,
    backoff_initial: Duration::from_secs(1),
    backoff_max: Duration::from_secs(60),
    deadline: Duration::from_secs(3_600),
};

fn settings() -> Guard {
    Guard { breaker: Some(BREAKER), ..guard() }
}

fn refused() -> RewardError {
    RewardError::Unreachable { what: "test".into(), reason: "connection refused".into() }
}

fn raised() -> RewardError {
    RewardError::Raised { what: "test".into(), reason: "ValueError".into() }
}

/// Answers in 10 ms, except from `from_s` to `until_s` on the clock of the test.
fn out_between(from_s: u64, until_s: u64) -> Arc<Told> {
    let began = Instant::now();
    let is_out = move || (from_s..until_s).contains(&began.elapsed().as_secs());
    Told::new(10, move |_| if is_out() { Err(refused()) } else { Ok(1.0) })
}

fn state(runner: &Guarded) -> RewardState {
    runner.health().unwrap().borrow().state.clone()
}

/// Asks about a job every 100 ms, and returns all results.
async fn stream(runner: &Guarded, jobs: usize) -> Vec<Result<f64, RewardError>> {
    let ask = |number: usize| async move {
        sleep(Duration::from_millis(100 * number as u64)).await;
        score_of(runner, &number.to_string()).await
    };
    join_all((0..jobs).map(ask)).await
}

#[tokio::test(start_paused = true)]
async fn no_job_fails_in_an_outage_and_only_probes_are_sent() {
    for retries in [0, 2] {
        let told = out_between(5, 1_000);
        let runner = guarded(&told, Guard { retries, deadline: Duration::from_secs(30), ..settings() });
        let began = Instant::now();
        let scores = stream(&runner, 1_000).await;
        assert!(scores.iter().all(|score| *score == Ok(1.0)), "{scores:?}");
        let took = began.elapsed().as_secs();
        assert!((1_000..1_065).contains(&took), "the last back-off is at most a minute, not {took} s");
        // Eight jobs are with the runner when the outage begins, and each of them may have failed twice.
        // Probes follow after pauses of 1, 2, 4 .. 32 seconds, and then every 60 seconds.
        let failed = told.calls() - 1_000;
        assert!((20..60).contains(&failed), "{failed} calls failed");
        let health = runner.health().unwrap().borrow().clone();
        assert_eq!((health.state, health.outages), (RewardState::Answering, 1));
        assert!((995..=1_065).contains(&health.out.as_secs()), "{:?}", health.out);
    }
}

#[tokio::test(start_paused = true)]
async fn a_hanging_reward_is_an_outage() {
    /// Hangs for ten minutes.
    struct Hangs(Instant);
    impl RewardRunner for Hangs {
        fn score<'a>(&'a self, _job: &'a RewardJob) -> BoxFuture<'a, Result<Score, RewardError>> {
            Box::pin(async move {
                let at = self.0.elapsed().as_secs();
                if (5..600).contains(&at) {
                    return std::future::pending().await;
                }
                Ok(Score::right_or_wrong(true, None))
            })
        }
    }
    for concurrency in [1, 8] {
        let settings = Guard { concurrency, retries: 0, deadline: Duration::from_secs(5), ..settings() };
        let runner: Arc<dyn RewardRunner> = Arc::new(Hangs(Instant::now()));
        let runner = Guarded::new(runner, settings, TaskTracker::new(), CancellationToken::new());
        let scores = stream(&runner, 100).await;
        assert!(scores.iter().all(|score| *score == Ok(1.0)), "{scores:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn all_jobs_end_at_the_deadline_of_an_outage() {
    for on_failure in [OnFailure::FailSample, OnFailure::Score(0.0)] {
        let told = out_between(1, u64::MAX);
        let breaker = BreakerConfig { deadline: Duration::from_secs(100), ..BREAKER };
        let runner = guarded(&told, Guard { on_failure, breaker: Some(breaker), ..settings() });
        score_of(&runner, "first").await.unwrap();
        sleep(Duration::from_secs(1)).await;
        let began = Instant::now();
        let scores = all(&runner, &different(50)).await;
        assert!((100..=102).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
        for score in scores {
            let error = score.unwrap_err();
            assert!(error.ends_run(), "{error}");
            let words = error.to_string();
            assert!(
                words.contains("outage_deadline_s=100") && words.contains("connection refused"),
                "{words}"
            );
        }
        let calls = told.calls();
        assert!(score_of(&runner, "later").await.unwrap_err().ends_run());
        assert_eq!(told.calls(), calls, "a reward that is given up is not asked");
    }
}

#[tokio::test(start_paused = true)]
async fn failures_of_samples_never_pause() {
    for error in [raised(), busy(400, None), busy(422, None)] {
        let failure = error.clone();
        let told = Told::new(10, move |_| Err(failure.clone()));
        let runner = guarded(&told, settings());
        let health = runner.health().unwrap();
        let scores = all(&runner, &different(100)).await;
        assert!(scores.iter().all(|score| *score == Err(error.clone())), "{scores:?}");
        assert_eq!(told.calls(), 100);
        assert!(!health.has_changed().unwrap(), "{error}");
    }
}

/// Some samples make the reward die or hang. They fail, with or without other jobs.
#[tokio::test(start_paused = true)]
async fn samples_that_no_attempt_survives_fail_without_an_outage() {
    struct Poisoned;
    impl RewardRunner for Poisoned {
        fn score<'a>(&'a self, job: &'a RewardJob) -> BoxFuture<'a, Result<Score, RewardError>> {
            Box::pin(async move {
                match &*job.response {
                    "hangs" => std::future::pending().await,
                    text if text.starts_with("bad") => Err(busy(500, None)),
                    _ => Ok(Score::right_or_wrong(true, None)),
                }
            })
        }
    }
    for retries in [0, 2] {
        let settings = Guard { retries, attempt: Duration::from_secs(2), ..settings() };
        let runner = Guarded::new(Arc::new(Poisoned), settings, TaskTracker::new(), CancellationToken::new());
        assert_eq!(score_of(&runner, "good").await, Ok(1.0));
        let began = Instant::now();
        assert_eq!(score_of(&runner, "bad").await, Err(busy(500, None)), "alone");
        let scores = all(&runner, &["good", "bad 1", "good 2"].map(str::to_owned)).await;
        assert_eq!(scores, [Ok(1.0), Err(busy(500, None)), Ok(1.0)], "among others");
        let bad: Vec<String> = (0..100).map(|number| format!("bad {number}")).collect();
        assert!(all(&runner, &bad).await.iter().all(|score| *score == Err(busy(500, None))));
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        assert!(matches!(score_of(&runner, "hangs").await, Err(RewardError::TimedOut { .. })));
        assert_eq!(runner.health().unwrap().borrow().outages, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_ends_even_if_no_job_waits_for_it() {
    let told = out_between(1, 10);
    let runner = guarded(&told, settings());
    score_of(&runner, "first").await.unwrap();
    sleep(Duration::from_secs(1)).await;
    assert!(timeout(Duration::from_secs(2), all(&runner, &different(20))).await.is_err());
    assert_eq!(state(&runner), RewardState::Out);
    sleep(Duration::from_secs(20)).await;
    assert_eq!(state(&runner), RewardState::Answering);
}

#[tokio::test(start_paused = true)]
async fn an_answer_on_its_way_ends_an_outage() {
    let told = Told::new(0, |call| if call == 0 { Ok(1.0) } else { Err(refused()) });
    let slow = Told::new(30_000, |_| Ok(0.5));
    struct Both(Arc<Told>, Arc<Told>);
    impl RewardRunner for Both {
        fn score<'a>(&'a self, job: &'a RewardJob) -> BoxFuture<'a, Result<Score, RewardError>> {
            if &*job.response == "slow" { self.1.score(job) } else { self.0.score(job) }
        }
    }
    let settings = Guard { attempt: Duration::from_secs(40), ..settings() };
    let both = Both(Arc::clone(&told), slow);
    let runner = Guarded::new(Arc::new(both), settings, TaskTracker::new(), CancellationToken::new());
    score_of(&runner, "first").await.unwrap();
    let beside = async {
        sleep(Duration::from_secs(1)).await;
        assert!(timeout(Duration::from_secs(28), all(&runner, &different(4))).await.is_err());
        assert_eq!(state(&runner), RewardState::Out);
    };
    let (score, ()) = tokio::join!(score_of(&runner, "slow"), beside);
    assert_eq!(score, Ok(0.5));
    assert_eq!(state(&runner), RewardState::Answering);
}

#[tokio::test(start_paused = true)]
async fn the_token_ends_jobs_and_probes() {
    let told = out_between(1, u64::MAX);
    let token = CancellationToken::new();
    let tracker = TaskTracker::new();
    let runner = Guarded::new(Arc::clone(&told) as _, settings(), tracker.clone(), token.clone());
    score_of(&runner, "first").await.unwrap();
    sleep(Duration::from_secs(1)).await;
    let ending = async {
        sleep(Duration::from_secs(20)).await;
        assert_eq!(state(&runner), RewardState::Out);
        token.cancel();
    };
    let responses = different(20);
    let (scores, ()) = tokio::join!(all(&runner, &responses), ending);
    assert!(scores.iter().all(|score| *score == Err(RewardError::Cancelled)), "{scores:?}");
    tracker.close();
    timeout(Duration::from_secs(1), tracker.wait()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_probe_finds_a_dead_reward_and_takes_any_answer() {
    for (said, lives) in [
        (Ok(1.0), true),
        (Err(raised()), true),
        (Err(busy(400, None)), true),
        (Err(busy(404, None)), false),
        (Err(refused()), false),
    ] {
        let answer = said.clone();
        let told = Told::new(0, move |_| answer.clone());
        let probed = guarded(&told, settings()).probe(&job("probe")).await;
        assert_eq!(probed.is_ok(), lives, "{said:?}");
        assert_eq!(told.calls(), if lives { 1 } else { 3 });
    }
    let hangs = Told::new(10_000_000, |_| Ok(1.0));
    let probed = guarded(&hangs, settings()).probe(&job("probe")).await;
    assert_eq!(probed, Err(RewardError::TimedOut { after: Duration::from_secs(5) }));
    let later = Told::new(0, |call| if call == 0 { Err(refused()) } else { Ok(1.0) });
    assert_eq!(guarded(&later, settings()).probe(&job("probe")).await, Ok(()));
    let unwatched = Told::new(0, |_| Err(refused()));
    assert_eq!(guarded(&unwatched, guard()).probe(&job("probe")).await, Ok(()), "the recipe has no breaker");
    assert_eq!(unwatched.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_rule_that_ends_the_run_waits_for_no_outage() {
    let told = out_between(0, u64::MAX);
    let runner = guarded(&told, Guard { on_failure: OnFailure::Stop, ..settings() });
    assert!(runner.probe(&job("probe")).await.is_err(), "it is probed nevertheless");
    let error = score_of(&runner, "a").await.unwrap_err();
    assert_eq!(error, RewardError::Stop { reason: refused().to_string() });
    assert!(runner.health().is_none());
}
